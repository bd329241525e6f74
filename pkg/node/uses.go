package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// recorded is an immutable record about one volume.
type recorded interface{ recordID() string }

// records is the newest view of a collection. The store's own view is that of
// the disk, and lags behind what need not be waited for.
type records[T recorded] struct {
	store   *state.Store
	records *state.Collection[T]

	mu     sync.RWMutex
	newest map[string]T
}

func newRecords[T recorded](store *state.Store, name string, options ...state.CollectionOption[T]) *records[T] {
	return &records[T]{store: store, records: state.Register(store, name, options...), newest: map[string]T{}}
}

func (r *records[T]) load() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.records.Ascend("", func(id string, record T) bool {
		r.newest[id] = record

		return true
	})
}

func (r *records[T]) get(id string) (T, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()

	record, ok := r.newest[id]

	return record, ok
}

func (r *records[T]) all() []T {
	r.mu.RLock()
	defer r.mu.RUnlock()

	all := make([]T, 0, len(r.newest))
	for _, record := range r.newest {
		all = append(all, record)
	}

	return all
}

// put records what is about to be done, durably.
func (r *records[T]) put(ctx context.Context, record T) error {
	return r.putIf(ctx, record, func() error { return nil })
}

// putIf is put where allowed, which sees the sums of all records and is alone
// with them, returns nil.
func (r *records[T]) putIf(ctx context.Context, record T, allowed func() error) error {
	err := r.store.Update(ctx, func(tx *state.Tx) error {
		if err := allowed(); err != nil {
			return err
		}

		return r.records.In(tx).Put(record.recordID(), record)
	})
	if err != nil {
		return fmt.Errorf("record the use of volume %s: %w", record.recordID(), err)
	}

	r.set(record)

	return nil
}

// putAll is put of several at once, for the price of one.
func (r *records[T]) putAll(ctx context.Context, all []T) error {
	err := r.store.Update(ctx, func(tx *state.Tx) error {
		for _, record := range all {
			if err := r.records.In(tx).Put(record.recordID(), record); err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("record the use of %d volumes: %w", len(all), err)
	}

	for _, record := range all {
		r.set(record)
	}

	return nil
}

// putDone records what has been undone. It does not wait for the disk: an older
// record only says what observation will contradict.
func (r *records[T]) putDone(record T) error {
	err := r.store.UpdateLazily(func(tx *state.Tx) error { return r.records.In(tx).Put(record.recordID(), record) })
	if err != nil {
		return fmt.Errorf("record the use of volume %s: %w", record.recordID(), err)
	}

	r.set(record)

	return nil
}

// drop forgets a volume that is not used any more, as putDone does.
func (r *records[T]) drop(id string) error {
	err := r.store.UpdateLazily(func(tx *state.Tx) error { return r.records.In(tx).Delete(id) })
	if err != nil {
		return fmt.Errorf("forget the use of volume %s: %w", id, err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.newest, id)

	return nil
}

func (r *records[T]) set(record T) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.newest[record.recordID()] = record
}
