package copies

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Remove makes snapshots be gone, and the group that they are all of.
// Errors: ABORTED while one is read.
func (m *Machine) Remove(ctx context.Context, group *record.Group, gone ...*record.Snapshot) error {
	for _, each := range gone {
		p, err := m.Catalog.Pool(each.Parameters.Pool, "snapshot "+each.ID)
		if err != nil {
			return err
		}

		if each.Phase == record.PhaseDeleting {
			continue // the check belongs before the first step
		}

		if err := objects.CheckMounts(p, each.Object()); err != nil {
			return err
		}
	}

	// Readers are excluded from all of them, or from none if one is being read.
	for _, each := range gone {
		unlock, err := m.Locks.TryLock(each.ID)
		if err != nil {
			return err
		}
		defer unlock() //nolint:gocritic // all are unlocked at the end
	}

	// Once this is durable they are gone for every CO, whatever happens to their
	// bytes before the next start.
	if err := m.Catalog.DeleteSnapshots(ctx, group, gone); err != nil {
		return err
	}

	for _, each := range gone {
		if err := m.Running.Stop(ctx, each.ID); err != nil {
			return err
		}
	}

	return catalog.IgnoreReadOnly(m.Remover.Queue.Do(ctx, m.Remover.Snapshots(group, gone)))
}

// LockSnapshot returns a snapshot that is ready, and prevents its deletion until
// release is called. Errors: NOT_FOUND, ABORTED while it is being copied or deleted.
func (m *Machine) LockSnapshot(id string) (found *record.Snapshot, release func(), err error) {
	release, err = m.Locks.TryRLock(id)
	if err != nil {
		return nil, nil, err
	}

	// After the lock: a deletion that starts from here on is refused.
	found, err = m.Catalog.FindSnapshot(id)
	if err == nil && found.Phase != record.PhaseReady {
		err = errdefs.Errorf(errdefs.ErrAborted, "snapshot %s is still being copied; retry when it is ready_to_use", id)
	}

	if err != nil {
		release()

		return nil, nil, err
	}

	return found, release, nil
}

// Recover schedules the removal of what a crash has left half-done: groups with their members, and then
// the other snapshots.
func (m *Machine) Recover() (err error) {
	members := map[string]bool{}

	for _, group := range m.Catalog.Groups.Ascend("") {
		if !group.Phase.IsUnfinished() {
			continue
		}

		m.Log.Info("removing an unfinished group snapshot", "group", group.ID, "phase", group.Phase)

		gone := m.Catalog.Members(group)
		for _, member := range gone {
			members[member.ID] = true
		}

		m.Remover.Queue.Add(m.Remover.Snapshots(group, gone))
		err = errors.Join(err, m.Catalog.FreeSnapshotNames(group, gone))
	}

	var gone []*record.Snapshot

	for id, each := range m.Catalog.Snapshots.Ascend("") {
		if each.Phase.IsUnfinished() && !members[id] {
			m.Log.Info("removing an unfinished snapshot", "snapshot", id, "phase", each.Phase)
			m.Remover.Queue.Add(m.Remover.Snapshots(nil, []*record.Snapshot{each}))

			gone = append(gone, each)
		}
	}

	return errors.Join(err, m.Catalog.FreeSnapshotNames(nil, gone))
}
