package copies

import (
	"context"
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
	// changed is closed, and replaced, when a copy starts, is stopped or ends.
	changed chan struct{}
}

type runningCopy struct {
	id string
	// name is empty once the copy is stopped: another snapshot may have its name by then.
	name  string
	stop  context.CancelCauseFunc
	ended chan struct{}
}

// NewRunning returns a tracker without copies.
func NewRunning() *Running {
	return &Running{copies: map[string]*runningCopy{}, changed: make(chan struct{})}
}

// Start registers a copy until end is called. Stop cancels the returned context.
func (r *Running) Start(ctx context.Context, id, name string) (stoppable context.Context, end func()) {
	stoppable, stop := context.WithCancelCause(ctx)
	entry := &runningCopy{id: id, name: name, stop: stop, ended: make(chan struct{})}

	r.change(func() { r.copies[id] = entry })

	return stoppable, func() {
		r.change(func() {
			stop(nil)
			close(entry.ended)

			// A restarted copy has replaced the entry.
			if r.copies[id] == entry {
				delete(r.copies, id)
			}
		})
	}
}

// change changes the copies, and wakes the calls that wait for one.
func (r *Running) change(edit func()) {
	r.mu.Lock()
	defer r.mu.Unlock()

	edit()
	close(r.changed)
	r.changed = make(chan struct{})
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
	var entry *runningCopy

	r.change(func() {
		if entry = r.copies[id]; entry != nil {
			entry.name = ""
		}
	})

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

// named returns the copy of the snapshot of that name, nil while none runs, and what is closed when that
// may have changed.
func (r *Running) named(name string) (current *runningCopy, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, each := range r.copies {
		if each.name == name {
			return each, r.changed
		}
	}

	return nil, r.changed
}

// awaitSlow returns the id of the snapshot of that name once its copy has run for the grace since the call
// of awaitSlow, and "" once done is closed.
func (r *Running) awaitSlow(name string, grace time.Duration, done <-chan struct{}) (id string) {
	var (
		awaited *runningCopy
		slow    <-chan time.Time
	)

	for {
		current, changed := r.named(name)

		switch {
		case current == nil:
			awaited, slow = nil, nil
		case current != awaited:
			awaited, slow = current, time.After(grace)
		}

		select {
		case <-done:
			return ""
		case <-changed:
		case <-slow:
			return awaited.id
		}
	}
}

// Await returns the snapshot of that name that take makes, an operation that goes on without its caller.
// Once its copy has run for the grace, Await acknowledges it: it records that the snapshot is being copied,
// and returns it so. The caller checks that it is what is asked for.
func (m *Machine) Await(
	ctx context.Context, name string, take func(context.Context) (*record.Snapshot, error),
) (*record.Snapshot, error) {
	_, found, ok := m.Catalog.Snapshots.Lookup(record.NameIndex, name)
	if ok && found.Phase == record.PhaseCopying && m.Running.Has(found.ID) {
		return found, nil
	}

	waiting, leave := context.WithCancel(ctx)
	defer leave()

	var made *record.Snapshot
	var err error
	done := make(chan struct{})

	go func() {
		defer close(done)

		made, err = take(waiting)
	}()

	for {
		id := m.Running.awaitSlow(name, m.Grace, done)
		if id == "" {
			return made, err
		}

		// A copy that has ended meanwhile is not acknowledged.
		copying, err := m.Catalog.AcknowledgeSnapshot(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("record that snapshot %q is being copied: %w", name, err)
		}

		if copying != nil {
			return copying, nil
		}
	}
}
