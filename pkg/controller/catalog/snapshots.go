package catalog

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// ErrDeleted is why a snapshot is not completed.
var ErrDeleted = errors.New("the snapshot is being deleted")

// SnapshotDeleted is the ABORTED of a call about a snapshot that was deleted meanwhile.
func SnapshotDeleted(id string) error {
	return errdefs.Errorf(errdefs.ErrAborted, "snapshot %s: %w", id, ErrDeleted)
}

// FindSnapshot returns a snapshot that exists for the CO. Errors: NOT_FOUND.
func (c *Catalog) FindSnapshot(id string) (*record.Snapshot, error) {
	found, ok := c.Snapshots.Get(id)
	if !ok || !found.IsVisible() {
		return nil, errdefs.Errorf(errdefs.ErrNotFound, "snapshot %s does not exist", id)
	}

	return found, nil
}

// Members returns the snapshots of a group; after a repair of the state it may lack some.
func (c *Catalog) Members(group *record.Group) []*record.Snapshot {
	var members []*record.Snapshot

	for _, id := range group.SnapshotIDs {
		if member, ok := c.Snapshots.Get(id); ok {
			members = append(members, member)
		}
	}

	return members
}

// sourceIndex has the snapshots of each volume, in the order of their ids: a value is the id of the volume,
// sourceEnd, and the id of the snapshot.
const (
	sourceIndex = "source"
	sourceEnd   = "/"
)

// VisibleSnapshots returns the snapshots behind an id that exist for the CO, those of one volume or all, in
// the order of their ids.
func (c *Catalog) VisibleSnapshots(sourceID, after string) iter.Seq[*record.Snapshot] {
	all, within := c.Snapshots.Ascend(after), ""
	if sourceID != "" {
		within = sourceID + sourceEnd
		all = c.Snapshots.AscendIndex(sourceIndex, within+after)
	}

	return func(yield func(*record.Snapshot) bool) {
		for value, found := range all {
			if !strings.HasPrefix(value, within) || found.IsVisible() && !yield(found) {
				return
			}
		}
	}
}

// transaction has the snapshots and groups of one transaction.
type transaction struct {
	snapshots state.View[*record.Snapshot]
	groups    state.View[*record.Group]
}

func in(c *Catalog, tx *state.Tx) transaction {
	return transaction{c.Snapshots.In(tx), c.Groups.In(tx)}
}

// ReserveSnapshots admits the capacity of new snapshots, and records them before their objects
// are created. group is nil unless they are its members. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED,
// ABORTED for one that is being deleted.
func (c *Catalog) ReserveSnapshots(ctx context.Context, group *record.Group, fresh ...*record.Snapshot) (err error) {
	defer errdefs.Wrapf(&err, "reserve")

	return c.admission.Admit(ctx, func(check pool.Check) error {
		return c.store.Update(ctx, func(tx *state.Tx) error {
			if err := in(c, tx).checkReserve(c.pools, check, group, fresh); err != nil {
				return err
			}

			return in(c, tx).put(group, fresh)
		})
	})
}

func (t transaction) checkReserve(from pools, check pool.Check, group *record.Group, fresh []*record.Snapshot) error {
	const exists = "it exists as %s, of another source; choose another name or delete it"

	// An operation on other volumes may have taken the name meanwhile.
	if group != nil {
		if id, _, ok := t.groups.Lookup(record.NameIndex, group.Name); ok && id != group.ID {
			return errdefs.Errorf(errdefs.ErrAlreadyExists, exists, id)
		}
	}

	needed := map[string]int64{}

	for _, each := range fresh {
		if id, _, ok := t.snapshots.Lookup(record.NameIndex, each.Name); ok && each.Name != "" && id != each.ID {
			return errdefs.Errorf(errdefs.ErrAlreadyExists, exists, id)
		}

		current, reserved := t.snapshots.Get(each.ID)

		switch {
		// An acknowledged one was recorded, and only its deletion forgets it.
		case reserved && current.Phase == record.PhaseDeleting, !reserved && each.Phase == record.PhaseCopying:
			return SnapshotDeleted(each.ID)
		case !reserved:
			needed[each.Parameters.Pool] += each.AllocatedBytes
		}
	}

	for name, bytes := range needed {
		p, err := from.Pool(name, "snapshot")
		if err != nil {
			return err
		}

		if err := check(p, bytes, false); err != nil {
			return err
		}
	}

	return nil
}

// AcknowledgeSnapshot records that a snapshot is about to be acknowledged before it is ready, and returns it;
// nil if it is not being copied any more. From then on only its deletion removes it.
func (c *Catalog) AcknowledgeSnapshot(ctx context.Context, id string) (copying *record.Snapshot, err error) {
	err = c.store.Update(ctx, func(tx *state.Tx) error {
		records := c.Snapshots.In(tx)

		found, ok := records.Get(id)
		if !ok || found.Phase != record.PhaseCreating && found.Phase != record.PhaseCopying {
			return nil
		}

		copying = found.InPhase(record.PhaseCopying)
		copying.Sequence = cmp.Or(found.Sequence, tx.Sequence())

		return records.Put(id, copying)
	})

	return copying, err
}

// AcceptSnapshots makes all of them be there for the CO, or none. Errors:
// ABORTED if one was deleted meanwhile.
func (c *Catalog) AcceptSnapshots(ctx context.Context, group *record.Group, done ...*record.Snapshot) (err error) {
	defer errdefs.Wrapf(&err, "record")

	// What is made is acknowledged or undone, not left in between.
	return c.store.Update(context.WithoutCancel(ctx), func(tx *state.Tx) error {
		ready := make([]*record.Snapshot, 0, len(done))

		for _, each := range done {
			current, ok := c.Snapshots.In(tx).Get(each.ID)
			if !ok || current.Phase == record.PhaseDeleting {
				return SnapshotDeleted(each.ID)
			}

			// CreatedAt was in an earlier answer, and stays. The source was frozen by then.
			if current.Phase == record.PhaseCopying {
				each.CreatedAt, each.Sequence = current.CreatedAt, current.Sequence
			} else {
				// Operations on one volume are serial: the next snapshot is taken later.
				each.Sequence = tx.Sequence()
			}

			ready = append(ready, each.InPhase(record.PhaseReady))
		}

		return in(c, tx).put(group.InPhase(record.PhaseReady), ready)
	})
}

// FailSnapshots records of those that are acknowledged and not ready, before their source may change, that
// their copies have failed, and returns them.
func (c *Catalog) FailSnapshots(ctx context.Context, failed ...*record.Snapshot) ([]*record.Snapshot, error) {
	var copying []*record.Snapshot

	err := c.store.Update(context.WithoutCancel(ctx), func(tx *state.Tx) error {
		records := c.Snapshots.In(tx)
		copying = inPhase(records, record.PhaseCopying, failed)

		for _, each := range copying {
			if err := records.Put(each.ID, each.InPhase(record.PhaseFailed)); err != nil {
				return err
			}
		}

		return nil
	})

	return copying, err
}

// inPhase returns the newest records of those snapshots that are in the phase.
func inPhase(records state.View[*record.Snapshot], phase record.Phase, of []*record.Snapshot) (found []*record.Snapshot) {
	for _, each := range of {
		if current, ok := records.Get(each.ID); ok && current.Phase == phase {
			found = append(found, current)
		}
	}

	return found
}

// AbandonSnapshots forgets those that were not acknowledged, and their group; with keep it only frees their
// names, and returns them: their objects are still to be removed.
func (c *Catalog) AbandonSnapshots(group *record.Group, failed []*record.Snapshot, keep bool) (kept []*record.Snapshot, err error) {
	err = c.store.UpdateLazily(func(tx *state.Tx) error {
		created := inPhase(c.Snapshots.In(tx), record.PhaseCreating, failed)
		if !keep {
			return in(c, tx).delete(group, created)
		}

		kept = created

		return in(c, tx).mark(group, created)
	})

	return kept, err
}

// DeleteSnapshots makes snapshots be gone for every CO, and the group that they are all of. Their names are
// free.
func (c *Catalog) DeleteSnapshots(ctx context.Context, group *record.Group, gone []*record.Snapshot) (err error) {
	defer errdefs.Wrapf(&err, "record the deletion")

	return c.store.Update(ctx, func(tx *state.Tx) error { return in(c, tx).mark(group, gone) })
}

// FreeSnapshotNames is DeleteSnapshots for what no CO knows, or knows to be deleted. It does not wait for the disk.
func (c *Catalog) FreeSnapshotNames(group *record.Group, gone []*record.Snapshot) error {
	return IgnoreReadOnly(c.store.UpdateLazily(func(tx *state.Tx) error { return in(c, tx).mark(group, gone) }))
}

// ForgetSnapshots does not wait for the disk, as ForgetVolume does not.
func (c *Catalog) ForgetSnapshots(group *record.Group, gone []*record.Snapshot) (err error) {
	defer errdefs.Wrapf(&err, "forget snapshots")

	return c.store.UpdateLazily(func(tx *state.Tx) error { return in(c, tx).delete(group, gone) })
}

// mark records that snapshots are to be removed, and the group that they are all of.
func (t transaction) mark(group *record.Group, gone []*record.Snapshot) error {
	deleting := make([]*record.Snapshot, 0, len(gone))

	for _, each := range gone {
		if current, ok := t.snapshots.Get(each.ID); ok {
			deleting = append(deleting, current.InPhase(record.PhaseDeleting))
		}
	}

	return t.put(group.InPhase(record.PhaseDeleting), deleting)
}

// put stores copies of the records, since the caller goes on to change its own.
func (t transaction) put(group *record.Group, snapshots []*record.Snapshot) error {
	for _, each := range snapshots {
		if err := t.snapshots.Put(each.ID, each.InPhase(each.Phase)); err != nil {
			return err
		}
	}

	if group == nil {
		return nil
	}

	return t.groups.Put(group.ID, group.InPhase(group.Phase))
}

func (t transaction) delete(group *record.Group, gone []*record.Snapshot) error {
	for _, each := range gone {
		if err := t.snapshots.Delete(each.ID); err != nil {
			return err
		}
	}

	if group == nil {
		return nil
	}

	return t.groups.Delete(group.ID)
}
