package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// errSlow ends the wait of a caller whose snapshot is being copied, and
// errStopped the copying of one that is being deleted.
var (
	errSlow    = errors.New("the snapshot is cut and is being copied")
	errStopped = errors.New("the snapshot is being deleted")
)

// slow are the snapshots whose copy takes long while their source is still
// anyway, so that they are as good as cut. It is safe for concurrent use.
type slow struct {
	mu      sync.Mutex
	running map[string]*slowCopy
	// begun is closed, and replaced, whenever a copy begins.
	begun chan struct{}
}

type slowCopy struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

func newSlow() *slow {
	return &slow{running: map[string]*slowCopy{}, begun: make(chan struct{})}
}

// begin lists the copy until end is called. The context ends early when somebody
// stops it.
func (s *slow) begin(ctx context.Context, id string) (stoppable context.Context, end func()) {
	stoppable, stop := context.WithCancelCause(ctx)
	entry := &slowCopy{stop: stop, ended: make(chan struct{})}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.running[id] = entry
	close(s.begun)
	s.begun = make(chan struct{})

	return stoppable, func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		stop(nil)
		close(entry.ended)

		// Whoever begins anew has replaced it.
		if s.running[id] == entry {
			delete(s.running, id)
		}
	}
}

func (s *slow) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.running[id] != nil
}

// stop ends the copying, and returns when it has ended. Errors: ctx's.
func (s *slow) stop(ctx context.Context, id string) error {
	s.mu.Lock()
	entry := s.running[id]
	s.mu.Unlock()

	if entry == nil {
		return nil
	}

	entry.stop(errStopped)

	select {
	case <-entry.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of the copying: %w", context.Cause(ctx))
	}
}

// wait returns when met is true, which it asks again after each begin, or with
// ctx's error.
func (s *slow) wait(ctx context.Context, met func() bool) error {
	for {
		s.mu.Lock()
		begun := s.begun
		s.mu.Unlock()

		if met() {
			return nil
		}

		select {
		case <-begun:
		case <-ctx.Done():
			return fmt.Errorf("wait for a copy that is slow: %w", context.Cause(ctx))
		}
	}
}
