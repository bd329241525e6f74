package staged

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Record is an immutable record.
type Record interface {
	// RecordID returns the record's key.
	RecordID() string
	// Check refuses a record that is incomplete or has an unknown value.
	Check() error
}

// Records is a collection of the store with its newest content in memory. The store's own
// view has what is durable, which lags behind lazy updates.
type Records[T Record] struct {
	store   *state.Store
	records *state.Collection[T]

	mu     sync.RWMutex
	newest map[string]T
}

// NewRecords registers the named collection in store, which must not be open yet.
func NewRecords[T Record](store *state.Store, name string, options ...state.CollectionOption[T]) *Records[T] {
	options = append(options, state.WithCheck(check[T]))

	return &Records[T]{store: store, records: state.Register(store, name, options...), newest: map[string]T{}}
}

// ErrRecord is returned by the checks of records.
var ErrRecord = errors.New("it is no record that the driver writes")

// check refuses a record that the driver would not have written with the key.
func check[T Record](key string, record T) error {
	if id := record.RecordID(); id != key {
		return fmt.Errorf("%w: it is of %q and not of its key", ErrRecord, id)
	}

	return record.Check()
}

// Load reads the records. It must be called once, after the store is opened.
func (r *Records[T]) Load() {
	r.mu.Lock()
	defer r.mu.Unlock()

	maps.Insert(r.newest, r.records.Ascend(""))
}

// Get returns the newest record with the key, false if there is none.
func (r *Records[T]) Get(id string) (T, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()

	record, ok := r.newest[id]

	return record, ok
}

// All returns the newest records, in no particular order.
func (r *Records[T]) All() []T {
	r.mu.RLock()
	defer r.mu.RUnlock()

	return slices.AppendSeq(make([]T, 0, len(r.newest)), maps.Values(r.newest))
}

// Put stores a record durably, before the node acts on it.
func (r *Records[T]) Put(ctx context.Context, record T) error {
	return r.PutAll(ctx, []T{record})
}

// PutAll is Put of several records in one transaction.
func (r *Records[T]) PutAll(ctx context.Context, all []T) error {
	return r.put(func(do func(*state.Tx) error) error { return r.store.Update(ctx, do) }, all...)
}

// PutUnsynced is Put of a record of what a power failure ends: a kill leaves the record, a power failure
// may not.
func (r *Records[T]) PutUnsynced(ctx context.Context, record T) error {
	return r.put(func(do func(*state.Tx) error) error { return r.store.UpdateUnsynced(ctx, do) }, record)
}

// PutIf is Put if allowed returns nil. It calls allowed in the transaction, so that no
// other update of the store runs beside it.
func (r *Records[T]) PutIf(ctx context.Context, record T, allowed func() error) error {
	return r.put(func(do func(*state.Tx) error) error {
		return r.store.Update(ctx, func(tx *state.Tx) error {
			if err := allowed(); err != nil {
				return err
			}

			return do(tx)
		})
	}, record)
}

// PutLazily stores a record of what has been undone, without waiting for the disk: if a
// crash restores the older record, recovery compares it with what is observed.
func (r *Records[T]) PutLazily(record T) error { return r.put(r.store.UpdateLazily, record) }

// put stores records in one transaction, which update makes.
func (r *Records[T]) put(update func(do func(*state.Tx) error) error, all ...T) error {
	err := update(func(tx *state.Tx) error {
		for _, record := range all {
			if err := r.records.In(tx).Put(record.RecordID(), record); err != nil {
				return err
			}
		}

		return nil
	})

	switch {
	case err != nil && len(all) == 1:
		return fmt.Errorf("record volume %s: %w", all[0].RecordID(), err)
	case err != nil:
		return fmt.Errorf("record %d volumes: %w", len(all), err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	for _, record := range all {
		r.newest[record.RecordID()] = record
	}

	return nil
}

// DeleteLazily deletes a record without waiting for the disk, as PutLazily.
func (r *Records[T]) DeleteLazily(id string) error {
	err := r.store.UpdateLazily(func(tx *state.Tx) error { return r.records.In(tx).Delete(id) })
	if err != nil {
		return fmt.Errorf("delete the record of volume %s: %w", id, err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.newest, id)

	return nil
}
