package controller

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/inflight"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// reserve writes down what is about to be made, and promises it its space.
// Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED.
func (s *Service) reserve(ctx context.Context, group *Group, fresh ...*Snapshot) error {
	err := s.store.Update(ctx, func(tx *state.Tx) error {
		if err := s.checkReserve(tx, group, fresh); err != nil {
			return err
		}

		return s.putSnapshots(tx, group, fresh)
	})
	if err != nil {
		return fmt.Errorf("reserve: %w", err)
	}

	return nil
}

func (s *Service) checkReserve(tx *state.Tx, group *Group, fresh []*Snapshot) error {
	const exists = "it exists as %s, of another source; choose another name or delete it"

	// An operation on other volumes may have taken the name meanwhile.
	if group != nil {
		if id, _, ok := s.groups.In(tx).Lookup(indexName, group.Name); ok && id != group.ID {
			return rpc.Errorf(codes.AlreadyExists, exists, id)
		}
	}

	records, needed := s.snapshots.In(tx), map[string]int64{}

	for _, each := range fresh {
		if id, _, ok := records.Lookup(indexName, each.Name); ok && each.Name != "" && id != each.ID {
			return rpc.Errorf(codes.AlreadyExists, exists, id)
		}

		if current, reserved := records.Get(each.ID); !reserved {
			needed[each.Parameters.Pool] += each.AllocatedBytes
		} else if current.Phase == PhaseDeleting {
			return errGone(each)
		}
	}

	for name, bytes := range needed {
		place, err := s.poolNamed(name, "snapshot")
		if err != nil {
			return err
		}

		if err := s.checkRoom(place, bytes); err != nil {
			return err
		}
	}

	return nil
}

// acceptSnapshots makes all of them be there for the CO, or none. Errors:
// ABORTED if one was deleted meanwhile.
func (s *Service) acceptSnapshots(ctx context.Context, group *Group, done ...*Snapshot) error {
	if group != nil {
		group = group.in(PhaseReady)
	}

	// What is made is acknowledged or undone, not left in between.
	err := s.store.Update(context.WithoutCancel(ctx), func(tx *state.Tx) error {
		ready := make([]*Snapshot, 0, len(done))

		for _, each := range done {
			current, ok := s.snapshots.In(tx).Get(each.ID)
			if !ok || current.Phase == PhaseDeleting {
				return errGone(each)
			}

			// What somebody was told stays true. The source was still by then.
			if current.Phase == PhaseCopying {
				each.CreatedAt = current.CreatedAt
			}

			ready = append(ready, each.in(PhaseReady))
		}

		return s.putSnapshots(tx, group, ready)
	})
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}

	return nil
}

func (s *Service) putSnapshots(tx *state.Tx, group *Group, snapshots []*Snapshot) error {
	for _, each := range snapshots {
		// A copy, since the caller goes on to change his.
		if err := s.snapshots.In(tx).Put(each.ID, each.in(each.Phase)); err != nil {
			return err
		}
	}

	if group == nil {
		return nil
	}

	return s.groups.In(tx).Put(group.ID, group)
}

// undoSnapshots removes what a failed creation has left, and returns why it
// failed. What somebody knows already stays as one that is not ready, to be
// tried again or deleted.
func (s *Service) undoSnapshots(cause error, group *Group, failed ...*Snapshot) error {
	var created []*Snapshot

	for _, each := range failed {
		place, err := s.poolNamed(each.Parameters.Pool, "snapshot "+each.ID)
		if err == nil {
			err = place.RemoveSnapshot(each.ID, each.Parameters.Backing)
		}

		if err != nil {
			// The next start does it.
			return errors.Join(cause, err)
		}
	}

	err := s.store.UpdateLazily(func(tx *state.Tx) error {
		records := s.snapshots.In(tx)

		for _, each := range failed {
			if current, ok := records.Get(each.ID); ok && current.Phase == PhaseCreating {
				created = append(created, each)
			}
		}

		return s.forgetSnapshots(tx, group, created)
	})

	return errors.Join(cause, lasting(err))
}

func (s *Service) forgetSnapshots(tx *state.Tx, group *Group, gone []*Snapshot) error {
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

// lasting leaves out what ends with the next start.
func lasting(err error) error {
	if err == nil || errors.Is(err, state.ErrReadOnly) {
		return nil
	}

	return fmt.Errorf("forget: %w", err)
}

// removeSnapshots makes snapshots be gone, and the group that they are all of.
// Errors: ABORTED while one is read.
func (s *Service) removeSnapshots(ctx context.Context, group *Group, gone ...*Snapshot) error {
	undoom, err := s.doomAll(gone)
	if err != nil {
		return err
	}
	defer undoom()

	if group != nil {
		group = group.in(PhaseDeleting)
	}

	// Once this is durable they are gone for every CO, whatever happens to their
	// bytes before the next start.
	err = s.store.Update(ctx, func(tx *state.Tx) error {
		doomed := make([]*Snapshot, 0, len(gone))

		for _, each := range gone {
			if current, ok := s.snapshots.In(tx).Get(each.ID); ok {
				doomed = append(doomed, current.in(PhaseDeleting))
			}
		}

		return s.putSnapshots(tx, group, doomed)
	})
	if err != nil {
		return fmt.Errorf("record the deletion: %w", err)
	}

	for _, each := range gone {
		if err := s.slow.stop(ctx, each.ID); err != nil {
			return err
		}
	}

	return s.eraseSnapshots(group, gone)
}

// doomAll keeps readers away from all of them, or from none if one is read.
func (s *Service) doomAll(gone []*Snapshot) (undoom func(), err error) {
	var undo []func()

	undoom = func() {
		for _, each := range undo {
			each()
		}
	}

	for _, each := range gone {
		one, err := s.holds.doom(each.ID)
		if err != nil {
			undoom()

			return nil, err
		}

		undo = append(undo, one)
	}

	return undoom, nil
}

// eraseSnapshots gives the bytes of snapshots back that no CO sees any more, and
// forgets them.
func (s *Service) eraseSnapshots(group *Group, gone []*Snapshot) error {
	for _, each := range gone {
		place, err := s.poolNamed(each.Parameters.Pool, "snapshot "+each.ID)
		if err != nil {
			return err
		}

		if err := place.RemoveSnapshot(each.ID, each.Parameters.Backing); err != nil {
			return err
		}
	}

	return lasting(s.store.UpdateLazily(func(tx *state.Tx) error { return s.forgetSnapshots(tx, group, gone) }))
}

// holdSnapshot finds a snapshot that is ready, and keeps it from being deleted
// until release is called. Errors: INVALID_ARGUMENT for an impossible id,
// NOT_FOUND, ABORTED while it is being copied or deleted.
func (s *Service) holdSnapshot(id string) (held *Snapshot, release func(), err error) {
	if err := checkSnapshotID(id); err != nil {
		return nil, nil, err
	}

	release, err = s.holds.hold(id)
	if err != nil {
		return nil, nil, err
	}

	// Only now: whoever deletes it from here on is told that it is held.
	found, err := s.findSnapshot(id)
	if err == nil && found.Phase != PhaseReady {
		err = rpc.Errorf(codes.Aborted, "snapshot %s is still being copied; retry when it is ready_to_use", id)
	}

	if err != nil {
		release()

		return nil, nil, err
	}

	return found, release, nil
}

// findSnapshot returns a snapshot that exists for the CO. Errors: NOT_FOUND.
func (s *Service) findSnapshot(id string) (*Snapshot, error) {
	found, ok := s.snapshots.Get(id)
	if !ok || !found.visible() {
		return nil, rpc.Errorf(codes.NotFound, "snapshot %s does not exist", id)
	}

	return found, nil
}

// recoverSnapshots ends what a crash has left half-done, and starts over what is
// being copied.
func (s *Service) recoverSnapshots(ctx context.Context) error {
	var gone, copying []*Snapshot

	s.snapshots.Ascend("", func(_ string, each *Snapshot) bool {
		switch each.Phase {
		case PhaseReady:
		case PhaseCopying:
			copying = append(copying, each)
		default:
			s.config.Log.Info("ending what was left half-done", "snapshot", each.ID, "phase", each.Phase)

			gone = append(gone, each)
		}

		return true
	})

	if err := s.eraseSnapshots(nil, gone); err != nil {
		return fmt.Errorf("recover snapshots: %w", err)
	}

	for _, each := range copying {
		if err := s.copyAgain(ctx, each); err != nil {
			return fmt.Errorf("recover snapshots: %w", err)
		}
	}

	return s.recoverGroups()
}

func (s *Service) recoverGroups() error {
	err := s.store.UpdateLazily(func(tx *state.Tx) error {
		var gone []string

		s.groups.In(tx).Ascend("", func(id string, each *Group) bool {
			if each.Phase != PhaseReady {
				gone = append(gone, id)
			}

			return true
		})

		for _, id := range gone {
			if err := s.groups.In(tx).Delete(id); err != nil {
				return err
			}
		}

		return nil
	})

	return lasting(err)
}

// copyAgain starts the copying of an acknowledged snapshot over, and does not
// wait for it. It is queued when copyAgain returns, before the first call that
// could change the source.
func (s *Service) copyAgain(ctx context.Context, lost *Snapshot) error {
	call := rpc.OnVolume(lost.SourceVolumeID, "snapshot "+lost.Name, "copy snapshot", nil)

	return inflight.Begin(ctx, s.ops, call, func(ctx context.Context) {
		if err := s.takeAgain(ctx, lost); err != nil {
			s.config.Log.Error("an acknowledged snapshot is not copied; it is tried again when CreateSnapshot is called again",
				"snapshot", lost.ID, "volume", lost.SourceVolumeID, "error", err)
		}
	})
}

func (s *Service) takeAgain(ctx context.Context, lost *Snapshot) error {
	current, ok := s.snapshots.Get(lost.ID)
	if !ok || current.Phase != PhaseCopying {
		return nil
	}

	source, err := s.find(lost.SourceVolumeID)
	if err != nil {
		// Nobody can copy it ever.
		return errors.Join(err, s.removeSnapshots(ctx, nil, lost))
	}

	s.config.Log.Info("copying a snapshot anew that was not finished", "snapshot", lost.ID, "volume", source.ID)

	_, err = s.takeSnapshot(ctx, lost.in(PhaseCopying), source)

	return err
}
