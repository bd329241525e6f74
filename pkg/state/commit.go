package state

import (
	"fmt"
	"slices"
)

// batch is a group of transactions that share one fdatasync.
type batch struct {
	lines   []byte
	first   uint64
	last    uint64
	changes []mutation

	// done is closed after err is set and, if that is nil, readers see the
	// changes.
	done chan struct{}
	err  error
}

func newBatch(lines []byte) *batch {
	return &batch{lines: lines[:0], done: make(chan struct{})}
}

func (b *batch) add(sequence uint64, tx *Tx) {
	if b.first == 0 {
		b.first = sequence
	}

	b.last = sequence
	b.changes = append(b.changes, tx.changes...)
	b.lines = appendTransaction(b.lines, sequence, b.first, tx.encoded)
}

// await returns when b is durable or has failed. One of those who wait gets the
// token and writes for all; so a lone Update pays for no change of goroutine.
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
	s.pending = newBatch(s.spare)
	s.spare = nil
	publish := s.seal()

	s.mu.Unlock()

	err := s.journal.append(b.lines)
	if err != nil {
		s.failClosed(err)

		return
	}

	for _, each := range publish {
		each()
	}

	s.mu.Lock()
	s.flushing = nil

	if cap(b.lines) <= spareBytes {
		s.spare = b.lines
	}

	s.mu.Unlock()

	s.durable = b.last
	b.lines, b.changes = nil, nil
	close(b.done)
	s.compactIfLarge()
}

// spareBytes bounds the buffer that is kept between two batches.
const spareBytes = 1 << 20

func (s *Store) seal() []func() {
	var publish []func()

	for _, each := range s.collections {
		if fn := each.seal(); fn != nil {
			publish = append(publish, fn)
		}
	}

	return publish
}

// failClosed makes the store read-only for ever and fails what is not durable.
// That needs no taking back, since only a transaction could see it and there
// will be none; observers are told. The caller holds the token.
func (s *Store) failClosed(cause error) {
	err := fmt.Errorf("%w since a write to %s failed: %w; what was acknowledged is safe: look after the disk, then restart",
		ErrReadOnly, s.dir, cause)

	s.mu.Lock()
	s.failure.Store(&err)

	failed := []*batch{s.pending}
	if s.flushing != nil {
		failed = append(failed, s.flushing)
	}

	for _, b := range failed {
		for _, each := range slices.Backward(b.changes) {
			each.retract()
		}
	}

	s.flushing = nil
	s.pending = newBatch(nil)
	s.mu.Unlock()

	s.options.Log.Error("state is read-only from now on", "dir", s.dir, "error", cause)

	// Who is told of a failure should not find the change after a restart; that
	// is a courtesy, so its own failure changes nothing.
	_ = s.journal.cut()

	for _, b := range failed {
		b.err = err
		close(b.done)
	}
}
