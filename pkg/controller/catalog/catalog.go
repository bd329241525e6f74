// Package catalog keeps the records of volumes, snapshots and groups in the store, with the indexes over
// them: it finds, reserves, changes and forgets them.
//
// Each change is one transaction, which decides on the newest records. A change that a CO waits for is
// durable when it returns; what only repeats a removal after a crash is not waited for. It contains no
// steps and changes no pool object.
package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Catalog has the records. Its collections are for reading: its methods change them. It is the ledger of
// what is provisioned (pool.Ledger). It is safe for concurrent use.
type Catalog struct {
	record.Collections
	*usage
	pools

	store     *state.Store
	admission *pool.Admission
	interner  *record.Interner
}

// New registers the collections with a store that is not open yet, and the catalog with the admission of
// the pools.
func New(store *state.Store, set *pool.Set, admission *pool.Admission) *Catalog {
	c := &Catalog{usage: newUsage(), store: store, pools: pools{set}, admission: admission, interner: &record.Interner{}}
	c.Collections = record.Register(store, record.Options{
		Volumes: []state.CollectionOption[*record.Volume]{state.WithObserver(c.observeVolume), state.WithPrepare(c.interner.Intern)},
		Snapshots: []state.CollectionOption[*record.Snapshot]{
			state.WithObserver(c.observeSnapshot), state.WithPrepare(record.InternSnapshot),
			state.WithIndex(sourceIndex, func(s *record.Snapshot) string { return s.SourceVolumeID + sourceEnd + s.ID }),
		},
	})
	admission.Register(c)

	return c
}

// Flush makes the lazy changes visible and durable that were made before.
func (c *Catalog) Flush(ctx context.Context) error {
	return c.store.Update(ctx, func(*state.Tx) error { return nil })
}

// IgnoreReadOnly leaves out the error of a state that takes no changes: the removal is repeated, in
// the background and by the next start.
func IgnoreReadOnly(err error) error {
	if errors.Is(err, state.ErrReadOnly) {
		return nil
	}

	return err
}

// Names lists the objects of a kind that a CO can see, ordered by id.
func (c *Catalog) Names(kind names.Kind) []names.Object {
	var listed []names.Object

	add := func(visible bool, id, name string) {
		if visible {
			listed = append(listed, names.Object{ID: id, Name: name})
		}
	}

	switch kind {
	case names.Volume:
		for id, v := range c.Volumes.Ascend("") {
			add(v.Phase == record.PhaseReady, id, v.Name)
		}
	case names.Snapshot:
		for id, found := range c.Snapshots.Ascend("") {
			add(found.IsVisible(), id, found.Name)
		}
	case names.Group:
		for id, g := range c.Groups.Ascend("") {
			add(g.Phase == record.PhaseReady, id, g.Name)
		}
	}

	return listed
}

// AddAllocated adds what volumes and snapshots have allocated in the pool.
func (c *Catalog) AddAllocated(ctx context.Context, poolName string, sum *pool.Allocation) error {
	p, err := c.set.Get(poolName)
	if err != nil {
		return err
	}

	for _, v := range c.Volumes.Ascend("") {
		if v.Parameters.Pool == poolName {
			if err := sum.Add(ctx, p, v.Object()); err != nil {
				return err
			}
		}
	}

	for _, each := range c.Snapshots.Ascend("") {
		if each.Parameters.Pool == poolName {
			if err := sum.Add(ctx, p, each.Object()); err != nil {
				return err
			}
		}
	}

	return nil
}

var errConfig = errors.New("bad configuration")

// pools returns the pools of volumes and snapshots.
type pools struct{ set *pool.Set }

// PoolOf returns the pool of a volume, if it is available.
func (p pools) PoolOf(v *record.Volume) (*pool.Pool, error) {
	return p.Pool(v.Parameters.Pool, "volume "+v.ID)
}

// Pool returns a pool that is available. The error mentions what it is the pool of.
func (p pools) Pool(name, of string) (*pool.Pool, error) {
	found, err := p.set.Get(name)

	switch {
	case errors.Is(err, pool.ErrUnknown):
		return nil, fmt.Errorf("%s: %w: pool %q is not configured (--pool)", of, errConfig, name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", of, err)
	default:
		return found, nil
	}
}
