package state

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

type phase int

const (
	phaseNew phase = iota
	phaseOpen
	phaseClosed
)

// collection is a Collection of any type.
type collection interface {
	seal() func()
	version() version
	decode(key string, encoded []byte) (any, error)
	recover(key string, decoded any) error
	recoverDeleted(key string)
}

// durability is what a transaction waits for.
type durability int

const (
	// lazy is nothing: a kill may lose it.
	lazy durability = iota
	// unsynced is the write, which a kill leaves and a power failure may not.
	unsynced
	// durable is fdatasync.
	durable
)

// writer has the latest state, which transactions change one after the other, and what of it is not written.
type writer struct {
	dir string
	log *slog.Logger

	// mu is the writer's lock. It is never held during I/O.
	mu          sync.Mutex
	phase       phase
	collections map[string]collection
	checks      []func(tx *Tx, report reportFunc)
	sequence    uint64
	pending     *batch
	flushing    *batch

	failure atomic.Pointer[error]
}

// reportFunc reports a record that contradicts others.
type reportFunc = func(collection, key string, reason error)

// check calls the checks with the latest state.
func (w *writer) check(report reportFunc) {
	for _, check := range w.checks {
		check(&Tx{writer: w, over: true}, report)
	}
}

// err is Store.Err.
func (w *writer) err() error {
	if failure := w.failure.Load(); failure != nil {
		return *failure
	}

	return nil
}

// accept runs fn and puts its changes into the batch that is written next. It
// returns the batch with which all that fn saw is written or durable, nil if it is.
func (w *writer) accept(fn func(tx *Tx) error, until durability) (*batch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if err := w.err(); err != nil {
		return nil, err
	}

	if w.phase != phaseOpen {
		return nil, fmt.Errorf("%w: %s", ErrNotOpen, w.dir)
	}

	if err := w.apply(fn, until == lazy); err != nil {
		return nil, err
	}

	return w.newestBatch(until == durable), nil
}

// apply runs fn and adds its changes to the pending batch. The caller holds mu.
func (w *writer) apply(fn func(tx *Tx) error, lazy bool) error {
	tx := &Tx{writer: w}
	accepted := false

	// Deferred, since fn may panic.
	defer func() {
		tx.over = true

		if !accepted {
			tx.revert()
		}
	}()

	if err := fn(tx); err != nil {
		return err
	}

	if tx.failed != nil {
		return tx.failed
	}

	accepted = true

	w.sequence = w.pending.add(w.sequence, tx.changes)

	if lazy {
		w.pending.lazy = append(w.pending.lazy, tx.changes)
	}

	for _, each := range tx.changes {
		each.announce()
	}

	return nil
}

// newestBatch is the batch after which the latest state is written, and durable if synced is true; nil
// if it is already. The caller holds mu.
func (w *writer) newestBatch(synced bool) *batch {
	switch {
	case synced && w.pending.first > 0:
		w.pending.sync = true

		return w.pending
	case len(w.pending.lines) > 0:
		return w.pending
	default:
		return w.flushing
	}
}

// close ends transactions. It returns the newest batch that is not written, and whether they were accepted until now.
func (w *writer) close() (newest *batch, wasOpen bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.phase != phaseOpen {
		return nil, false
	}

	w.phase = phaseClosed

	return w.newestBatch(false), true
}

// take returns the pending changes as the batch to write now, and what makes them visible; nil if
// there are none, or the store is read-only.
func (w *writer) take() (b *batch, publish []func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	b = w.pending
	if len(b.lines) == 0 && !b.sync || w.err() != nil {
		return nil, nil
	}

	w.flushing = b
	w.pending = newBatch(0)

	if !b.sync {
		w.pending.first = b.first
	}

	return b, w.seal()
}

// written notes that the batch that was taken is in the journal.
func (w *writer) written() {
	w.mu.Lock()
	w.flushing = nil
	w.mu.Unlock()
}

func (w *writer) seal() []func() {
	var publish []func()

	for _, each := range w.collections {
		if fn := each.seal(); fn != nil {
			publish = append(publish, fn)
		}
	}

	return publish
}

// takeBack sets the failure, makes the latest state the one of the last written change, and returns the
// batches that are not written. Lazy changes, which no caller waits for, can be kept pending.
func (w *writer) takeBack(failure error, written uint64, keepLazy bool) []*batch {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.failure.Store(&failure)

	var failed []*batch
	if w.flushing != nil {
		failed = append(failed, w.flushing)
	}

	failed = append(failed, w.pending)

	for _, b := range slices.Backward(failed) {
		for _, each := range slices.Backward(b.changes) {
			each.revert()
			each.retract()
		}
	}

	w.sequence = written
	w.flushing = nil
	w.pending = newBatch(0)

	if first := failed[0].first; first <= written {
		w.pending.first = first
	}

	if keepLazy {
		w.redoLazy(failed)
	}

	return failed
}

// redoLazy makes the lazy changes of failed batches again. The caller holds mu.
func (w *writer) redoLazy(failed []*batch) {
	for _, b := range failed {
		for _, changes := range b.lazy {
			err := w.apply(func(tx *Tx) error {
				for _, each := range changes {
					_ = each.redo(tx) // its error aborts the transaction
				}

				return nil
			}, true)
			if err != nil {
				w.log.Error("a lazy change of the state is lost with one that has failed", "dir", w.dir, "error", err)
			}
		}
	}
}

// versions returns the durable version of each collection, in the order of their names.
func (w *writer) versions() []version {
	all := make([]version, 0, len(w.collections))
	for _, name := range slices.Sorted(maps.Keys(w.collections)) {
		all = append(all, w.collections[name].version())
	}

	return all
}
