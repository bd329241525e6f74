package controller

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// undoSnapshots removes what a failed creation has left, and returns why it
// failed. What a CO knows already stays as one that has failed; at the end of the driver as
// one that the next start copies.
func (s *Service) undoSnapshots(ctx context.Context, cause error, group *record.Group, failed ...*record.Snapshot) error {
	failures := []error{cause}

	var left []*record.Snapshot

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
		failures = append(failures, s.recordFailed(ctx, cause, failed...))
	}

	created, err := s.catalog.AbandonSnapshots(group, failed, len(left) > 0)
	if len(created) > 0 {
		s.config.Removals.Add(s.removalOfSnapshots(group, created))
	}

	return errors.Join(append(failures, catalog.IgnoreReadOnly(err))...)
}

// recordFailed records, before the source may change, that the copies of acknowledged snapshots
// have failed.
func (s *Service) recordFailed(ctx context.Context, cause error, failed ...*record.Snapshot) error {
	recorded, err := s.catalog.FailSnapshots(ctx, failed...)
	for _, each := range recorded {
		s.config.Log.Error("the copy of an acknowledged snapshot has failed; delete it and take another",
			"snapshot", each.ID, "volume", each.SourceVolumeID, "error", cause)
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
	if err := s.catalog.DeleteSnapshots(ctx, group, gone); err != nil {
		return err
	}

	for _, each := range gone {
		if err := s.copies.Stop(ctx, each.ID); err != nil {
			return err
		}
	}

	return catalog.IgnoreReadOnly(s.config.Removals.Do(ctx, s.removalOfSnapshots(group, gone)))
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

	return s.catalog.ForgetSnapshots(group, gone)
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
	found, err = s.catalog.FindSnapshot(id)
	if err == nil && found.Phase != record.PhaseReady {
		err = rpc.Errorf(codes.Aborted, "snapshot %s is still being copied; retry when it is ready_to_use", id)
	}

	if err != nil {
		release()

		return nil, nil, err
	}

	return found, release, nil
}

// removeUnfinishedSnapshots schedules the removal of what a crash has left half-done.
func (s *Service) removeUnfinishedSnapshots() error {
	var gone []*record.Snapshot

	members, err := s.recoverGroups()
	if err != nil {
		return fmt.Errorf("recover group snapshots: %w", err)
	}

	s.catalog.Snapshots.Ascend("", func(id string, each *record.Snapshot) bool {
		if each.Phase.IsUnfinished() && !members[id] {
			s.config.Log.Info("removing an unfinished snapshot", "snapshot", id, "phase", each.Phase)

			gone = append(gone, each)
		}

		return true
	})

	for _, each := range gone {
		s.config.Removals.Add(s.removalOfSnapshots(nil, []*record.Snapshot{each}))
	}

	if err := s.catalog.FreeSnapshotNames(nil, gone); err != nil {
		return fmt.Errorf("recover snapshots: %w", err)
	}

	return nil
}

// recoverGroups schedules the removal of groups that are not ready, and returns
// the ids of their members.
func (s *Service) recoverGroups() (members map[string]bool, err error) {
	var unfinished []*record.Group

	s.catalog.Groups.Ascend("", func(_ string, each *record.Group) bool {
		if each.Phase.IsUnfinished() {
			unfinished = append(unfinished, each)
		}

		return true
	})

	members = map[string]bool{}

	for _, group := range unfinished {
		s.config.Log.Info("removing an unfinished group snapshot", "group", group.ID, "phase", group.Phase)

		gone := s.catalog.Members(group)
		for _, member := range gone {
			members[member.ID] = true
		}

		s.config.Removals.Add(s.removalOfSnapshots(group, gone))
		err = errors.Join(err, s.catalog.FreeSnapshotNames(group, gone))
	}

	return members, err
}
