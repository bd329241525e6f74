package state

import (
	"context"
	"fmt"
	"slices"
)

// Tx is one transaction: all its changes become durable, or none. It belongs to
// the function that it was handed to, until that returns.
type Tx struct {
	writer  *writer
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

func (tx *Tx) usable(w *writer) error {
	switch {
	case tx.over:
		return ErrTransactionOver
	case tx.writer != w:
		return tx.fail(fmt.Errorf("%w: it is of another store", ErrTransactionOver))
	default:
		return tx.failed
	}
}

// Sequence is the number of the transaction's first change if it changes anything: larger than that
// of all changes that are in the store.
func (tx *Tx) Sequence() uint64 { return tx.writer.sequence + 1 }

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
	return s.update(ctx, fn, durable)
}

// UpdateUnsynced is Update that returns when its changes are written: a kill leaves them, and a power
// failure may lose those since the last Update, the newest first. It is for what a power failure ends
// as well, such as mounts.
func (s *Store) UpdateUnsynced(ctx context.Context, fn func(tx *Tx) error) error {
	return s.update(ctx, fn, unsynced)
}

func (s *Store) update(ctx context.Context, fn func(tx *Tx) error, until durability) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("update state: %w", err)
	}

	b, err := s.writer.accept(fn, until)
	if err != nil || b == nil {
		return err
	}

	return s.committer.await(b)
}

// UpdateLazily is UpdateUnsynced without the wait: the change is written, and visible to readers, with
// the next change or after Options.LazyFlush. It is for changes whose loss in a crash does no harm.
// If the write finds no space, the change is kept and written when there is space again.
func (s *Store) UpdateLazily(fn func(tx *Tx) error) error {
	b, err := s.writer.accept(fn, lazy)
	if err != nil || b == nil {
		return err
	}

	s.committer.flushLater()

	return nil
}
