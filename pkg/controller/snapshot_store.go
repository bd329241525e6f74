package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// reserve admits the capacity of new snapshots, and records them before their objects
// are created. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED.
func (s *Service) reserve(ctx context.Context, group *record.Group, fresh ...*record.Snapshot) error {
	err := s.config.Admission.Admit(ctx, func(check pool.Check) error {
		return s.store.Update(ctx, func(tx *state.Tx) error {
			if err := s.checkReserve(tx, check, group, fresh); err != nil {
				return err
			}

			return s.putSnapshots(tx, group, fresh)
		})
	})
	if err != nil {
		return fmt.Errorf("reserve: %w", err)
	}

	return nil
}

func (s *Service) checkReserve(tx *state.Tx, check pool.Check, group *record.Group, fresh []*record.Snapshot) error {
	const exists = "it exists as %s, of another source; choose another name or delete it"

	// An operation on other volumes may have taken the name meanwhile.
	if group != nil {
		if id, _, ok := s.groups.In(tx).Lookup(record.NameIndex, group.Name); ok && id != group.ID {
			return rpc.Errorf(codes.AlreadyExists, exists, id)
		}
	}

	records, needed := s.snapshots.In(tx), map[string]int64{}

	for _, each := range fresh {
		if id, _, ok := records.Lookup(record.NameIndex, each.Name); ok && each.Name != "" && id != each.ID {
			return rpc.Errorf(codes.AlreadyExists, exists, id)
		}

		if current, reserved := records.Get(each.ID); !reserved {
			needed[each.Parameters.Pool] += each.AllocatedBytes
		} else if current.Phase == record.PhaseDeleting {
			return errGone(each)
		}
	}

	for name, bytes := range needed {
		p, err := s.Pool(name, "snapshot")
		if err != nil {
			return err
		}

		if err := check(p, bytes, false); err != nil {
			return err
		}
	}

	return nil
}

// acceptSnapshots makes all of them be there for the CO, or none. Errors:
// ABORTED if one was deleted meanwhile.
func (s *Service) acceptSnapshots(ctx context.Context, group *record.Group, done ...*record.Snapshot) error {
	// What is made is acknowledged or undone, not left in between.
	err := s.store.Update(context.WithoutCancel(ctx), func(tx *state.Tx) error {
		ready := make([]*record.Snapshot, 0, len(done))

		for _, each := range done {
			current, ok := s.snapshots.In(tx).Get(each.ID)
			if !ok || current.Phase == record.PhaseDeleting {
				return errGone(each)
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

		return s.putSnapshots(tx, group.InPhase(record.PhaseReady), ready)
	})
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}

	return nil
}

// putSnapshots stores copies of the records, since the caller goes on to change its own.
func (s *Service) putSnapshots(tx *state.Tx, group *record.Group, snapshots []*record.Snapshot) error {
	for _, each := range snapshots {
		if err := s.snapshots.In(tx).Put(each.ID, each.InPhase(each.Phase)); err != nil {
			return err
		}
	}

	if group == nil {
		return nil
	}

	return s.groups.In(tx).Put(group.ID, group.InPhase(group.Phase))
}

// undoSnapshots removes what a failed creation has left, and returns why it
// failed. What a CO knows already stays as one that has failed; at the end of the driver as
// one that the next start copies.
func (s *Service) undoSnapshots(ctx context.Context, cause error, group *record.Group, failed ...*record.Snapshot) error {
	failures := []error{cause}

	var created, left []*record.Snapshot

	for _, each := range failed {
		p, err := s.Pool(each.Parameters.Pool, "snapshot "+each.ID)
		if err == nil {
			err = p.Discard(ctx, each.Object())
		}

		if err != nil {
			left, failures = append(left, each), append(failures, err)
		}
	}

	if !errors.Is(context.Cause(ctx), operation.ErrDraining) {
		failures = append(failures, s.recordFailed(ctx, cause, failed))
	}

	err := s.store.UpdateLazily(func(tx *state.Tx) error {
		records := s.snapshots.In(tx)

		for _, each := range failed {
			if current, ok := records.Get(each.ID); ok && current.Phase == record.PhaseCreating {
				created = append(created, each)
			}
		}

		if len(left) > 0 {
			return s.markSnapshots(tx, group, created)
		}

		return s.forgetSnapshots(tx, group, created)
	})

	if len(left) > 0 && len(created) > 0 {
		s.config.Removals.Add(s.removalOfSnapshots(group, created))
	}

	return errors.Join(append(failures, ignoreReadOnly(err))...)
}

// recordFailed records, before the source may change, that the copies of acknowledged snapshots
// have failed.
func (s *Service) recordFailed(ctx context.Context, cause error, failed []*record.Snapshot) error {
	copying := func(each *record.Snapshot) bool {
		current, ok := s.snapshots.Get(each.ID)

		return ok && current.Phase == record.PhaseCopying
	}
	if !slices.ContainsFunc(failed, copying) {
		return nil
	}

	return s.store.Update(context.WithoutCancel(ctx), func(tx *state.Tx) error {
		records := s.snapshots.In(tx)

		for _, each := range failed {
			current, ok := records.Get(each.ID)
			if !ok || current.Phase != record.PhaseCopying {
				continue
			}

			s.config.Log.Error("the copy of an acknowledged snapshot has failed; delete it and take another",
				"snapshot", each.ID, "volume", each.SourceVolumeID, "error", cause)

			if err := records.Put(each.ID, current.InPhase(record.PhaseFailed)); err != nil {
				return err
			}
		}

		return nil
	})
}

// markSnapshots frees the names of snapshots that are to be removed, and of the
// group that they are all of.
func (s *Service) markSnapshots(tx *state.Tx, group *record.Group, gone []*record.Snapshot) error {
	deleting := make([]*record.Snapshot, 0, len(gone))

	for _, each := range gone {
		if current, ok := s.snapshots.In(tx).Get(each.ID); ok {
			deleting = append(deleting, current.InPhase(record.PhaseDeleting))
		}
	}

	return s.putSnapshots(tx, group.InPhase(record.PhaseDeleting), deleting)
}

func (s *Service) forgetSnapshots(tx *state.Tx, group *record.Group, gone []*record.Snapshot) error {
	for _, each := range gone {
		if err := s.snapshots.In(tx).Delete(each.ID); err != nil {
			return err
		}
	}

	if group == nil {
		return nil
	}

	return s.groups.In(tx).Delete(group.ID)
}

// ignoreReadOnly leaves out the error of a state that takes no changes: the removal is repeated, in
// the background and by the next start.
func ignoreReadOnly(err error) error {
	if errors.Is(err, state.ErrReadOnly) {
		return nil
	}

	return err
}

// removeSnapshots makes snapshots be gone, and the group that they are all of.
// Errors: ABORTED while one is read.
func (s *Service) removeSnapshots(ctx context.Context, group *record.Group, gone ...*record.Snapshot) error {
	for _, each := range gone {
		p, err := s.Pool(each.Parameters.Pool, "snapshot "+each.ID)
		if err != nil {
			return err
		}

		if each.Phase == record.PhaseDeleting {
			continue // the check belongs before the first step
		}

		if err := checkMounts(p, each.Object()); err != nil {
			return err
		}
	}

	unlock, err := s.lockSnapshots(gone)
	if err != nil {
		return err
	}
	defer unlock()

	// Once this is durable they are gone for every CO, whatever happens to their
	// bytes before the next start.
	err = s.store.Update(ctx, func(tx *state.Tx) error { return s.markSnapshots(tx, group, gone) })
	if err != nil {
		return fmt.Errorf("record the deletion: %w", err)
	}

	for _, each := range gone {
		if err := s.copies.Stop(ctx, each.ID); err != nil {
			return err
		}
	}

	return ignoreReadOnly(s.config.Removals.Do(ctx, s.removalOfSnapshots(group, gone)))
}

// lockSnapshots excludes readers from all of them, or from none if one is being read.
func (s *Service) lockSnapshots(gone []*record.Snapshot) (unlock func(), err error) {
	var unlocks []func()

	unlock = func() {
		for _, each := range unlocks {
			each()
		}
	}

	for _, each := range gone {
		one, err := s.locks.TryLock(each.ID)
		if err != nil {
			unlock()

			return nil, err
		}

		unlocks = append(unlocks, one)
	}

	return unlock, nil
}

// removalOfSnapshots is the task that gives the space of snapshots back that no CO
// sees any more, and forgets them and the group that they are all of.
func (s *Service) removalOfSnapshots(group *record.Group, gone []*record.Snapshot) removal.Task {
	task := removal.Task{Remove: func(ctx context.Context) error { return s.eraseSnapshots(ctx, group, gone) }}

	switch {
	case len(gone) > 0 && group == nil:
		task.Pool, task.Object = gone[0].Parameters.Pool, "snapshot "+gone[0].ID
	case len(gone) > 0:
		task.Pool, task.Object = gone[0].Parameters.Pool, "group snapshot "+group.ID
	case group != nil:
		task.Object = "group snapshot " + group.ID
	}

	return task
}

func (s *Service) eraseSnapshots(ctx context.Context, group *record.Group, gone []*record.Snapshot) error {
	for _, each := range gone {
		p, err := s.Pool(each.Parameters.Pool, "snapshot "+each.ID)
		if err != nil {
			return err
		}

		if err := p.Remove(ctx, each.Object()); err != nil {
			return err
		}

		// As for volumes (removalOf).
		if err := p.SyncRemovals(); err != nil {
			return err
		}
	}

	err := s.store.UpdateLazily(func(tx *state.Tx) error { return s.forgetSnapshots(tx, group, gone) })
	if err != nil {
		return fmt.Errorf("forget snapshots: %w", err)
	}

	return nil
}

// LockSnapshot returns a snapshot that is ready, and prevents its deletion until
// release is called. Errors: INVALID_ARGUMENT for an impossible id,
// NOT_FOUND, ABORTED while it is being copied or deleted.
func (s *Service) LockSnapshot(id string) (found *record.Snapshot, release func(), err error) {
	if err := rpc.CheckID("snapshot_id", id); err != nil {
		return nil, nil, err
	}

	release, err = s.locks.TryRLock(id)
	if err != nil {
		return nil, nil, err
	}

	// After the lock: a deletion that starts from here on is refused.
	found, err = s.findSnapshot(id)
	if err == nil && found.Phase != record.PhaseReady {
		err = rpc.Errorf(codes.Aborted, "snapshot %s is still being copied; retry when it is ready_to_use", id)
	}

	if err != nil {
		release()

		return nil, nil, err
	}

	return found, release, nil
}

// findSnapshot returns a snapshot that exists for the CO. Errors: NOT_FOUND.
func (s *Service) findSnapshot(id string) (*record.Snapshot, error) {
	found, ok := s.snapshots.Get(id)
	if !ok || !found.IsVisible() {
		return nil, rpc.Errorf(codes.NotFound, "snapshot %s does not exist", id)
	}

	return found, nil
}

// removeUnfinishedSnapshots schedules the removal of what a crash has left half-done.
func (s *Service) removeUnfinishedSnapshots() error {
	var gone []*record.Snapshot

	members, err := s.recoverGroups()
	if err != nil {
		return fmt.Errorf("recover group snapshots: %w", err)
	}

	s.snapshots.Ascend("", func(id string, each *record.Snapshot) bool {
		if each.Phase.IsUnfinished() && !members[id] {
			s.config.Log.Info("removing an unfinished snapshot", "snapshot", id, "phase", each.Phase)

			gone = append(gone, each)
		}

		return true
	})

	for _, each := range gone {
		s.config.Removals.Add(s.removalOfSnapshots(nil, []*record.Snapshot{each}))
	}

	marked := s.store.UpdateLazily(func(tx *state.Tx) error { return s.markSnapshots(tx, nil, gone) })
	if err := ignoreReadOnly(marked); err != nil {
		return fmt.Errorf("recover snapshots: %w", err)
	}

	return nil
}

// recoverGroups schedules the removal of groups that are not ready, and returns
// the ids of their members.
func (s *Service) recoverGroups() (members map[string]bool, err error) {
	members = map[string]bool{}
	unfinished := map[*record.Group][]*record.Snapshot{}

	s.groups.Ascend("", func(id string, each *record.Group) bool {
		if !each.Phase.IsUnfinished() {
			return true
		}

		s.config.Log.Info("removing an unfinished group snapshot", "group", id, "phase", each.Phase)

		unfinished[each] = nil

		for _, memberID := range each.SnapshotIDs {
			if member, ok := s.snapshots.Get(memberID); ok {
				unfinished[each] = append(unfinished[each], member)
				members[memberID] = true
			}
		}

		s.config.Removals.Add(s.removalOfSnapshots(each, unfinished[each]))

		return true
	})

	return members, ignoreReadOnly(s.store.UpdateLazily(func(tx *state.Tx) error {
		for group, gone := range unfinished {
			if err := s.markSnapshots(tx, group, gone); err != nil {
				return err
			}
		}

		return nil
	}))
}
