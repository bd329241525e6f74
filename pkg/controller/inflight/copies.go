package inflight

import (
	"context"
	"fmt"
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
)

// Copies tracks the snapshots whose data is being copied for a long time while the
// source cannot change. It is safe for concurrent use.
type Copies struct {
	mu      sync.Mutex
	running map[string]*runningCopy
	// started is closed and replaced whenever a copy starts.
	started chan struct{}
}

type runningCopy struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

// NewCopies returns a tracker without copies.
func NewCopies() *Copies {
	return &Copies{running: map[string]*runningCopy{}, started: make(chan struct{})}
}

// Start registers a copy until end is called. Stop cancels the returned context.
func (c *Copies) Start(ctx context.Context, id string) (stoppable context.Context, end func()) {
	stoppable, stop := context.WithCancelCause(ctx)
	entry := &runningCopy{stop: stop, ended: make(chan struct{})}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.running[id] = entry
	close(c.started)
	c.started = make(chan struct{})

	return stoppable, func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		stop(nil)
		close(entry.ended)

		// A restarted copy has replaced the entry.
		if c.running[id] == entry {
			delete(c.running, id)
		}
	}
}

// Running reports whether the snapshot is being copied.
func (c *Copies) Running(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.running[id] != nil
}

// Stop cancels the copy with catalog.ErrDeleted and waits until it has ended. Errors: those of ctx.
func (c *Copies) Stop(ctx context.Context, id string) error {
	c.mu.Lock()
	entry := c.running[id]
	c.mu.Unlock()

	if entry == nil {
		return nil
	}

	entry.stop(catalog.ErrDeleted)

	select {
	case <-entry.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until the copy has ended: %w", context.Cause(ctx))
	}
}

// WaitFor returns when met returns true. It evaluates met first, then after each start
// of a copy. Error: that of ctx.
func (c *Copies) WaitFor(ctx context.Context, met func() bool) error {
	for {
		c.mu.Lock()
		begun := c.started
		c.mu.Unlock()

		if met() {
			return nil
		}

		select {
		case <-begun:
		case <-ctx.Done():
			return fmt.Errorf("wait for a background copy: %w", context.Cause(ctx))
		}
	}
}
