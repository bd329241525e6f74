package state

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Tx is one transaction: all its changes become durable, or none. It belongs to
// the function that it was handed to, until that returns.
type Tx struct {
	store   *Store
	changes []mutation
	failed  error
	over    bool
}

// mutation is a change of any type.
type mutation interface {
	appendTo(lines []byte, sequence, batch uint64, more bool) []byte
	revert()
	announce()
	retract()
	// redo makes the change again, in another transaction.
	redo(tx *Tx) error
}

func (tx *Tx) usable(s *Store) error {
	switch {
	case tx.over:
		return ErrTransactionOver
	case tx.store != s:
		return tx.fail(fmt.Errorf("%w: it is of another store", ErrTransactionOver))
	default:
		return tx.failed
	}
}

// Sequence is the number of the transaction's first change if it changes anything: larger than that
// of all changes that are in the store.
func (tx *Tx) Sequence() uint64 { return tx.store.sequence + 1 }

func (tx *Tx) fail(err error) error {
	tx.failed = err

	return err
}

func (tx *Tx) revert() {
	for _, each := range slices.Backward(tx.changes) {
		each.revert()
	}
}

// Update runs fn on the latest state, including what is not durable yet, and
// returns when its changes and everything that it saw are durable. Transactions
// are serial; fn must not block and must not use the store but through tx. An
// error of fn, or of a Put, aborts: nothing is applied, and the error is
// returned as it is.
//
// ctx is checked before fn runs. After that Update waits for the disk, because the outcome is not
// known before.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	err := ctx.Err()
	if err != nil {
		return fmt.Errorf("update state: %w", err)
	}

	b, err := s.accept(fn, false)
	if err != nil || b == nil {
		return err
	}

	return s.await(b)
}

// UpdateLazily is Update without the wait: the change becomes durable, and visible to readers, with
// the next Update or after Options.LazyFlush. It is for changes whose loss in a crash does no harm.
// If the write finds no space, the change is kept and written when there is space again.
func (s *Store) UpdateLazily(fn func(tx *Tx) error) error {
	b, err := s.accept(fn, true)
	if err != nil || b == nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.phase != phaseOpen || s.lazy != nil || s.Err() != nil {
		return nil
	}

	s.background.Add(1)
	s.lazy = time.AfterFunc(s.options.LazyFlush, func() {
		defer s.background.Done()

		s.mu.Lock()
		s.lazy = nil
		b := s.newestBatch()
		writable := s.Err() == nil
		s.mu.Unlock()

		if writable && b != nil {
			// The failure is kept, and Err returns it.
			_ = s.await(b)
		}
	})

	return nil
}

// accept runs fn and puts its changes into the batch that is written next. It
// returns the batch that makes durable all that fn saw, nil if all is durable.
func (s *Store) accept(fn func(tx *Tx) error, lazy bool) (*batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	err := s.writable()
	if err != nil {
		return nil, err
	}

	err = s.apply(fn, lazy)
	if err != nil {
		return nil, err
	}

	return s.newestBatch(), nil
}

// apply runs fn and adds its changes to the pending batch. The caller holds mu.
func (s *Store) apply(fn func(tx *Tx) error, lazy bool) error {
	tx := &Tx{store: s}
	accepted := false

	// Deferred, since fn may panic.
	defer func() {
		tx.over = true

		if !accepted {
			tx.revert()
		}
	}()

	err := fn(tx)
	if err != nil {
		return err
	}

	if tx.failed != nil {
		return tx.failed
	}

	accepted = true

	s.sequence = s.pending.add(s.sequence, tx.changes)

	if lazy {
		s.pending.lazy = append(s.pending.lazy, tx.changes)
	}

	for _, each := range tx.changes {
		each.announce()
	}

	return nil
}

func (s *Store) writable() error {
	err := s.Err()
	if err != nil {
		return err
	}

	if s.phase != phaseOpen {
		return fmt.Errorf("%w: %s", ErrNotOpen, s.dir)
	}

	return nil
}

// newestBatch is the batch after which the latest state is the durable one; nil
// if it is already.
func (s *Store) newestBatch() *batch {
	if len(s.pending.lines) > 0 {
		return s.pending
	}

	return s.flushing
}
