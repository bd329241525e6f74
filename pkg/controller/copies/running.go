package copies

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Running tracks the snapshots whose data is being copied for a long time while the
// source cannot change. It is safe for concurrent use.
type Running struct {
	mu     sync.Mutex
	copies map[string]*runningCopy
	// waiters are the calls that wait for a copy, with the names of their snapshots.
	waiters map[*waiter]string
}

type runningCopy struct {
	// name is empty once the copy is stopped: another snapshot may have its name by then.
	name  string
	stop  context.CancelCauseFunc
	ended chan struct{}
}

// errSlow is why a call does not wait any longer.
var errSlow = errors.New("the copy takes long")

// waiter is a call that becomes slow once the copy that it waits for has run for the grace.
type waiter struct {
	grace time.Duration
	leave context.CancelCauseFunc
	// timer is nil until the copy runs.
	timer *time.Timer
}

// NewRunning returns a tracker without copies.
func NewRunning() *Running {
	return &Running{copies: map[string]*runningCopy{}, waiters: map[*waiter]string{}}
}

// Start registers a copy until end is called. Stop cancels the returned context.
func (r *Running) Start(ctx context.Context, id, name string) (stoppable context.Context, end func()) {
	stoppable, stop := context.WithCancelCause(ctx)
	entry := &runningCopy{name: name, stop: stop, ended: make(chan struct{})}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.copies[id] = entry

	for each, of := range r.waiters {
		if of == name {
			each.begin()
		}
	}

	return stoppable, func() {
		r.mu.Lock()
		defer r.mu.Unlock()

		stop(nil)
		close(entry.ended)

		// A restarted copy has replaced the entry.
		if r.copies[id] == entry {
			delete(r.copies, id)
		}
	}
}

// Has reports whether the snapshot is being copied.
func (r *Running) Has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.copies[id] != nil
}

// Stop cancels the copy with catalog.ErrDeleted, ends the waiting for it, and waits until it has ended.
// Errors: those of ctx.
func (r *Running) Stop(ctx context.Context, id string) error {
	r.mu.Lock()

	entry := r.copies[id]
	if entry != nil {
		for each, of := range r.waiters {
			if of == entry.name && each.timer != nil && each.timer.Stop() {
				each.timer = nil
			}
		}

		entry.name = ""
	}

	r.mu.Unlock()

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

// untilSlow returns a context that ends once the copy of that name has run for the grace since the call of
// untilSlow. leave ends it in any case, and reports whether the copy is slow.
func (r *Running) untilSlow(ctx context.Context, name string, grace time.Duration) (waiting context.Context, leave func() (slow bool)) {
	waiting, cancel := context.WithCancelCause(ctx)
	w := &waiter{grace: grace, leave: cancel}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.waiters[w] = name

	for _, each := range r.copies {
		if each.name == name {
			w.begin()
		}
	}

	return waiting, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		defer cancel(nil)

		delete(r.waiters, w)

		if w.timer != nil {
			w.timer.Stop()
		}

		return errors.Is(context.Cause(waiting), errSlow)
	}
}

// begin starts the grace. The mutex is held.
func (w *waiter) begin() {
	if w.timer == nil {
		w.timer = time.AfterFunc(w.grace, func() { w.leave(errSlow) })
	}
}

// Await returns the snapshot of that name that take makes, an operation that goes on without its caller.
// Once its copy has run for the grace, Await acknowledges it: it records that the snapshot is being copied,
// and returns it so. The caller checks that it is what is asked for.
func (m *Machine) Await(
	ctx context.Context, name string, take func(context.Context) (*record.Snapshot, error),
) (*record.Snapshot, error) {
	for {
		if found, copying := m.running(name); copying && found.Phase == record.PhaseCopying {
			return found, nil
		}

		waiting, leave := m.Running.untilSlow(ctx, name, m.Grace)
		made, err := take(waiting)

		if slow := leave(); err == nil || !slow {
			return made, err
		}

		// Of a copy that has ended meanwhile the next turn returns what has become of it.
		if _, copying := m.running(name); !copying {
			continue
		}

		if err := m.Catalog.AcknowledgeSnapshot(ctx, name); err != nil {
			return nil, err
		}
	}
}

// running returns the snapshot of that name, and whether it is being copied.
func (m *Machine) running(name string) (found *record.Snapshot, copying bool) {
	_, found, ok := m.Catalog.Snapshots.Lookup(record.NameIndex, name)

	return found, ok && m.Running.Has(found.ID)
}
