package copies

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
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

	unlock, err := m.lockSnapshots(gone)
	if err != nil {
		return err
	}
	defer unlock()

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

// lockSnapshots excludes readers from all of them, or from none if one is being read.
func (m *Machine) lockSnapshots(gone []*record.Snapshot) (unlock func(), err error) {
	var unlocks []func()

	unlock = func() {
		for _, each := range unlocks {
			each()
		}
	}

	for _, each := range gone {
		one, err := m.Locks.TryLock(each.ID)
		if err != nil {
			unlock()

			return nil, err
		}

		unlocks = append(unlocks, one)
	}

	return unlock, nil
}

// LockSnapshot returns a snapshot that is ready, and prevents its deletion until
// release is called. Errors: INVALID_ARGUMENT for an impossible id,
// NOT_FOUND, ABORTED while it is being copied or deleted.
func (m *Machine) LockSnapshot(id string) (found *record.Snapshot, release func(), err error) {
	if err := rpc.CheckID("snapshot_id", id); err != nil {
		return nil, nil, err
	}

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

// Recover schedules the removal of what a crash has left half-done.
func (m *Machine) Recover() error {
	var gone []*record.Snapshot

	members, err := m.recoverGroups()
	m.Catalog.Snapshots.Ascend("", func(id string, each *record.Snapshot) bool {
		if each.Phase.IsUnfinished() && !members[id] {
			m.Log.Info("removing an unfinished snapshot", "snapshot", id, "phase", each.Phase)

			gone = append(gone, each)
		}

		return true
	})

	for _, each := range gone {
		m.Remover.Queue.Add(m.Remover.Snapshots(nil, []*record.Snapshot{each}))
	}

	return errors.Join(err, m.Catalog.FreeSnapshotNames(nil, gone))
}

// recoverGroups schedules the removal of groups that are not ready, and returns
// the ids of their members.
func (m *Machine) recoverGroups() (members map[string]bool, err error) {
	var unfinished []*record.Group

	m.Catalog.Groups.Ascend("", func(_ string, each *record.Group) bool {
		if each.Phase.IsUnfinished() {
			unfinished = append(unfinished, each)
		}

		return true
	})

	members = map[string]bool{}

	for _, group := range unfinished {
		m.Log.Info("removing an unfinished group snapshot", "group", group.ID, "phase", group.Phase)

		gone := m.Catalog.Members(group)
		for _, member := range gone {
			members[member.ID] = true
		}

		m.Remover.Queue.Add(m.Remover.Snapshots(group, gone))
		err = errors.Join(err, m.Catalog.FreeSnapshotNames(group, gone))
	}

	return members, err
}
