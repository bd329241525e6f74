package state

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// batch is a group of transactions that share one fdatasync.
type batch struct {
	lines   []byte
	first   uint64
	last    uint64
	changes []mutation
	// lazy has the changes of each lazy transaction, in their order.
	lazy [][]mutation

	// done is closed after err is set and, if that is nil, readers see the
	// changes.
	done chan struct{}
	err  error
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// add appends the changes of a transaction, one line each, and returns the number of the last one.
func (b *batch) add(sequence uint64, changes []mutation) uint64 {
	if b.first == 0 {
		b.first = sequence + 1
	}
	for i, each := range changes {
		sequence++
		b.lines = each.appendTo(b.lines, sequence, b.first, i < len(changes)-1)
	}
	b.last = sequence
	b.changes = append(b.changes, changes...)
	return sequence
}

// await returns when b is durable or has failed. One of the waiting goroutines gets the token and
// writes for all, so a lone Update needs no switch of goroutines.
func (s *Store) await(b *batch) error {
	select {
	case <-b.done:
	case s.token <- struct{}{}:
		s.flush()
		<-s.token
		// Either flush wrote b or who had the token before did.
		<-b.done
	}

	return b.err
}

// flush writes what is pending. The caller holds the token.
func (s *Store) flush() {
	s.mu.Lock()

	b := s.pending
	if len(b.lines) == 0 || s.Err() != nil {
		s.mu.Unlock()

		return
	}

	s.flushing = b
	s.pending = newBatch()
	publish := s.seal()

	s.mu.Unlock()

	err := s.journal.append(b.lines)
	if err != nil {
		s.fail(err)

		return
	}

	s.durable = b.last
	s.writeMark()

	for _, each := range publish {
		each()
	}

	s.mu.Lock()
	s.flushing = nil
	s.mu.Unlock()

	close(b.done)
	s.compactIfLarge()
}

func (s *Store) seal() []func() {
	var publish []func()

	for _, each := range s.collections {
		if fn := each.seal(); fn != nil {
			publish = append(publish, fn)
		}
	}

	return publish
}

// fail makes the store read-only, reverts what is not durable and fails the waiting Updates. After a
// write that failed for lack of space, the lazy changes are kept and a retry runs in the background.
// After any other failure, of a sync above all, the store stays read-only: the content of the disk
// is unknown. The caller holds the token.
func (s *Store) fail(cause error) {
	full := errors.Is(cause, errNoSpace)

	err := fmt.Errorf("%w since a write to %s failed: %w; what was acknowledged is safe: look after the disk, then restart",
		ErrReadOnly, s.dir, cause)
	if full {
		err = fmt.Errorf("%w as long as %s has no space: %w; free some, then changes are accepted again", ErrReadOnly, s.dir, cause)
	}

	failed := s.takeBack(err, full)

	s.options.Log.Error("state is read-only from now on", "dir", s.dir, "error", cause, "untilSpace", full)

	// A change whose Update failed should not reappear after a restart. That is not guaranteed, so
	// an error is ignored.
	_ = s.journal.wipe()

	if full {
		s.background.Go(s.awaitSpace)
	}

	for _, b := range failed {
		b.err = err
		close(b.done)
	}
}

// takeBack sets the failure, makes the latest state the durable one and returns the
// batches that are not durable. Lazy changes, which no caller waits for, can be kept pending.
func (s *Store) takeBack(failure error, keepLazy bool) []*batch {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.failure.Store(&failure)

	var failed []*batch
	if s.flushing != nil {
		failed = append(failed, s.flushing)
	}

	failed = append(failed, s.pending)

	for _, b := range slices.Backward(failed) {
		for _, each := range slices.Backward(b.changes) {
			each.revert()
			each.retract()
		}
	}

	s.sequence = s.durable
	s.flushing = nil
	s.pending = newBatch()

	if keepLazy {
		s.redoLazy(failed)
	}

	return failed
}

// redoLazy makes the lazy changes of failed batches again. The caller holds mu.
func (s *Store) redoLazy(failed []*batch) {
	for _, b := range failed {
		for _, changes := range b.lazy {
			err := s.apply(func(tx *Tx) error {
				for _, each := range changes {
					_ = each.redo(tx) // its error aborts the transaction
				}

				return nil
			}, true)
			if err != nil {
				s.options.Log.Error("a lazy change of the state is lost with one that has failed", "dir", s.dir, "error", err)
			}
		}
	}
}

// awaitSpace makes the store writable again when the journal can grow again.
func (s *Store) awaitSpace() {
	for done := false; !done; done = s.regainSpace() {
		select {
		case <-time.After(s.options.RetrySpace):
		case <-s.stopped.Done():
			return
		}
	}
}

// regainSpace reports whether there is nothing more to wait for.
func (s *Store) regainSpace() bool {
	s.token <- struct{}{}
	defer func() { <-s.token }()

	if s.journal == nil {
		return true
	}

	err := s.journal.wipe()
	if err == nil {
		err = s.journal.file.Sync()
	}

	if err == nil {
		err = s.journal.fill(s.journal.filled)
	}

	switch {
	case errors.Is(err, errNoSpace):
		return false
	case err != nil:
		s.fail(err)
	default:
		s.failure.Store(nil)
		s.options.Log.Info("state has space again and accepts changes", "dir", s.dir)
		s.flush()
	}

	return true
}
