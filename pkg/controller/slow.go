package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// errStillCopying ends the wait of a caller whose snapshot is being copied, and
// ErrStopped the copying of one that is being deleted.
var (
	errStillCopying = errors.New("the snapshot is cut and is being copied")
	ErrStopped      = errors.New("the snapshot is being deleted")
)

// slow are the snapshots whose copy takes long while their source is still
// anyway, so that they are as good as cut. It is safe for concurrent use.
type Copies struct {
	mu      sync.Mutex
	running map[string]*runningCopy
	// begun is closed, and replaced, whenever a copy begins.
	started chan struct{}
}

type runningCopy struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

func NewCopies() *Copies {
	return &Copies{running: map[string]*runningCopy{}, started: make(chan struct{})}
}

// begin lists the copy until end is called. The context ends early when somebody
// stops it.
func (s *Copies) Start(ctx context.Context, id string) (stoppable context.Context, end func()) {
	stoppable, stop := context.WithCancelCause(ctx)
	entry := &runningCopy{stop: stop, ended: make(chan struct{})}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.running[id] = entry
	close(s.started)
	s.started = make(chan struct{})

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

func (s *Copies) Running(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.running[id] != nil
}

// stop ends the copying, and returns when it has ended. Errors: ctx's.
func (s *Copies) Stop(ctx context.Context, id string) error {
	s.mu.Lock()
	entry := s.running[id]
	s.mu.Unlock()

	if entry == nil {
		return nil
	}

	entry.stop(ErrStopped)

	select {
	case <-entry.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of the copying: %w", context.Cause(ctx))
	}
}

// wait returns when met is true, which it asks again after each begin, or with
// ctx's error.
func (s *Copies) WaitFor(ctx context.Context, met func() bool) error {
	for {
		s.mu.Lock()
		begun := s.started
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
