package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller/inflight"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// errStillCopying ends the wait of a caller whose snapshot is being copied.
var errStillCopying = errors.New("the snapshot is taken and is being copied")

// snapshotRequest is a valid CreateSnapshotRequest.
type snapshotRequest struct {
	name, sourceID string
	consistency    volume.Consistency
	topology       *csi.TopologyRequirement
}

// CreateSnapshot makes a snapshot of a volume, or returns the one of that name
// if it is of that volume (CSI v1.13, CreateSnapshot). Once the source can't
// change any more, a caller waits CopyGrace for the copy and then gets the answer
// that it is not ready.
func (s *Service) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	wanted, err := s.parseSnapshot(request)
	if err != nil {
		return nil, rpc.Status(err)
	}

	call := rpc.VolumeCall(wanted.sourceID, "snapshot "+wanted.name, "CreateSnapshot", request)

	for {
		_, found, ok := s.snapshots.Lookup(record.NameIndex, wanted.name)
		if ok && found.Phase == record.PhaseCopying && s.copies.Running(found.ID) {
			if err := s.checkSameSnapshot(found, wanted); err != nil {
				return nil, rpc.Status(err)
			}

			return &csi.CreateSnapshotResponse{Snapshot: s.describeSnapshot(found)}, nil
		}

		waiting, leave := s.untilSlow(ctx, wanted.name)
		made, err := rpc.Run(waiting, s.config.Log, s.ops, call, func(ctx context.Context) (*record.Snapshot, error) {
			return s.ensureSnapshot(ctx, wanted)
		})
		slow := errors.Is(context.Cause(waiting), errStillCopying)
		leave()

		if err == nil {
			return &csi.CreateSnapshotResponse{Snapshot: s.describeSnapshot(made)}, nil
		}

		if !slow {
			return nil, err
		}

		// A copy that failed meanwhile is tried again, and returns its error then.
		if err := s.recordCopying(ctx, wanted.name); err != nil {
			return nil, rpc.Status(err)
		}
	}
}

func (s *Service) parseSnapshot(request *csi.CreateSnapshotRequest) (*snapshotRequest, error) {
	if err := checkName(request.GetName()); err != nil {
		return nil, err
	}

	if request.GetSourceVolumeId() == "" {
		return nil, rpc.Invalid("source_volume_id is missing")
	}

	if err := volume.CheckID(request.GetSourceVolumeId()); err != nil {
		return nil, rpc.Invalid("source_volume_id: %w", err)
	}

	if request.GetAccessibilityRequirements() != nil && !s.has(capability.SnapshotConstraints) {
		return nil, rpc.Invalid("accessibility_requirements must be empty, as the capability %s is not advertised",
			capability.SnapshotConstraints)
	}

	consistency, err := volume.ParseSnapshotParameters(request.GetParameters())
	if err != nil {
		return nil, rpc.Invalid("parameters: %w", err)
	}

	return &snapshotRequest{
		name: request.GetName(), sourceID: request.GetSourceVolumeId(), consistency: consistency,
		topology: request.GetAccessibilityRequirements(),
	}, nil
}

// untilSlow ends the context with errStillCopying once the snapshot of that name has
// been copied for CopyGrace.
func (s *Service) untilSlow(ctx context.Context, name string) (waiting context.Context, leave func()) {
	waiting, cancel := context.WithCancelCause(ctx)

	go func() {
		err := s.copies.WaitFor(waiting, func() bool {
			_, found, ok := s.snapshots.Lookup(record.NameIndex, name)

			return ok && s.copies.Running(found.ID)
		})
		if err != nil {
			return
		}

		select {
		case <-waiting.Done():
		case <-time.After(s.config.CopyGrace):
			cancel(errStillCopying)
		}
	}()

	return waiting, func() { cancel(nil) }
}

// recordCopying records that a snapshot is about to be acknowledged before it is ready. From then
// on only its deletion removes it.
func (s *Service) recordCopying(ctx context.Context, name string) error {
	err := s.store.Update(ctx, func(tx *state.Tx) error {
		records := s.snapshots.In(tx)

		id, found, ok := records.Lookup(record.NameIndex, name)
		if !ok || found.Phase != record.PhaseCreating {
			return nil
		}

		copying := found.InPhase(record.PhaseCopying)
		copying.Sequence = tx.Sequence()

		return records.Put(id, copying)
	})
	if err != nil {
		return fmt.Errorf("record that snapshot %q is being copied: %w", name, err)
	}

	return nil
}

func (s *Service) ensureSnapshot(ctx context.Context, wanted *snapshotRequest) (*record.Snapshot, error) {
	id, existing, exists := s.snapshots.Lookup(record.NameIndex, wanted.name)
	if exists {
		err := s.checkSameSnapshot(existing, wanted)

		switch {
		case existing.Phase == record.PhaseCreating:
			// It was not acknowledged. It may have failed and be about to be forgotten;
			// if not, reserve finds the name taken.
			exists = err == nil
		case err != nil:
			return nil, err
		case existing.Phase == record.PhaseReady:
			return existing, nil
		}
	}

	if err := s.config.Segments.CheckRequirement(wanted.topology); err != nil {
		return nil, err
	}

	source, err := s.find(wanted.sourceID)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q: %w", wanted.name, err)
	}

	fresh, err := s.newSnapshot(ctx, source, wanted.consistency)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q: %w", wanted.name, err)
	}

	fresh.Name = wanted.name

	if exists {
		// Its copy has failed after it was acknowledged.
		fresh.ID, fresh.Phase = id, existing.Phase
	}

	made, err := s.takeSnapshot(ctx, fresh, source)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q of volume %s: %w", wanted.name, source.ID, err)
	}

	return made, nil
}

// checkSameSnapshot returns ALREADY_EXISTS unless found is what is wanted.
func (s *Service) checkSameSnapshot(found *record.Snapshot, wanted *snapshotRequest) error {
	exists := func(what string, has, asked any) error {
		return rpc.Errorf(codes.AlreadyExists, "snapshot %q exists as %s with %s %v, not %v; choose another name or delete it",
			wanted.name, found.ID, what, has, asked)
	}

	switch {
	case found.SourceVolumeID != wanted.sourceID:
		return exists("source volume", found.SourceVolumeID, wanted.sourceID)
	case found.Consistency != wanted.consistency:
		return exists(volume.KeyConsistency, found.Consistency, wanted.consistency)
	case found.Segments.CheckRequirement(wanted.topology) != nil:
		return exists("topology", found.Segments, "the requisite one")
	default:
		return nil
	}
}

// newSnapshot describes a snapshot of the volume, without a name.
func (s *Service) newSnapshot(ctx context.Context, source *record.Volume, consistency volume.Consistency) (*record.Snapshot, error) {
	place, err := s.poolOf(source)
	if err != nil {
		return nil, err
	}

	id, err := volume.NewID()
	if err != nil {
		return nil, err
	}

	allocated, err := place.AllocatedBytes(ctx, source.ID, source.Parameters.Backing)
	if lost := source.Pristine && errors.Is(err, pool.ErrMissing); err != nil && !lost {
		return nil, err
	}

	return &record.Snapshot{
		ID: id, SourceVolumeID: source.ID, SizeBytes: source.CapacityBytes, AllocatedBytes: allocated,
		Parameters: source.Parameters, Consistency: consistency, Raw: source.IsRaw(), Segments: source.Segments,
		CreatedAt: time.Now(), Phase: record.PhaseCreating,
	}, nil
}

// takeSnapshot makes the snapshot, or leaves nothing behind.
func (s *Service) takeSnapshot(ctx context.Context, fresh *record.Snapshot, source *record.Volume) (*record.Snapshot, error) {
	place, err := s.poolOf(source)
	if err != nil {
		return nil, err
	}

	// The record comes first: after a crash it leads to what Commit has made.
	if err := s.reserve(ctx, nil, fresh); err != nil {
		return nil, err
	}

	taken, err := s.prepareCopy(source, place, fresh.Object(), "snapshot", pool.CopyOptions{})
	if err != nil {
		return nil, s.undoSnapshots(ctx, err, nil, fresh)
	}

	frozen, err := s.volumesToFreeze(fresh.Consistency, []*pendingCopy{taken})

	if err == nil && len(frozen) == 0 && !taken.copy.PointInTime() {
		stoppable, end := s.copies.Start(ctx, fresh.ID)
		defer end()

		ctx = stoppable
	}

	if err == nil {
		err = s.fillSnapshot(ctx, fresh, taken, frozen)
	}

	if err != nil {
		return nil, s.undoSnapshots(ctx, errors.Join(err, taken.abort(err)), nil, fresh)
	}

	s.release(taken)

	return fresh.InPhase(record.PhaseReady), nil
}

// fillSnapshot cuts the copy and makes it be the snapshot.
func (s *Service) fillSnapshot(ctx context.Context, fresh *record.Snapshot, taken *pendingCopy, frozen []string) error {
	err := s.takeCopies(ctx, frozen, []*pendingCopy{taken})
	if err != nil {
		if errors.Is(context.Cause(ctx), inflight.ErrStopped) {
			return errGone(fresh)
		}

		return err
	}

	fresh.CreatedAt = taken.at

	if fresh.AllocatedBytes, err = taken.copy.Commit(ctx); err != nil {
		return err
	}

	return s.acceptSnapshots(ctx, nil, fresh)
}

func errGone(gone *record.Snapshot) error {
	return rpc.Errorf(codes.Aborted, "snapshot %s: %w", gone.ID, inflight.ErrStopped)
}

// release ends a copy that has become what it was for.
func (s *Service) release(done *pendingCopy) {
	if err := done.abort(nil); err != nil {
		s.config.Log.Warn("a finished copy could not be let go of", "volume", done.source.ID, "error", err)
	}
}

// DeleteSnapshot makes a snapshot and its data be gone (CSI v1.13,
// DeleteSnapshot). One that is read by a restore is refused with ABORTED, a
// member of a group with INVALID_ARGUMENT.
func (s *Service) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := request.GetSnapshotId()
	if err := checkSnapshotID(id); err != nil {
		return nil, rpc.Status(err)
	}

	call := operation.Call{Key: "snapshot " + id, Method: "DeleteSnapshot", Request: request}

	return rpc.Run(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (*csi.DeleteSnapshotResponse, error) {
		if err := s.deleteSnapshot(ctx, id); err != nil {
			return nil, fmt.Errorf("delete snapshot %s: %w", id, err)
		}

		return &csi.DeleteSnapshotResponse{}, nil
	})
}

func (s *Service) deleteSnapshot(ctx context.Context, id string) error {
	found, ok := s.snapshots.Get(id)

	switch {
	// One that is being created was not acknowledged.
	case !ok || found.Phase == record.PhaseCreating:
		return nil
	case found.GroupID != "" && found.Phase == record.PhaseDeleting:
		return nil
	case found.GroupID != "":
		return rpc.Invalid("it is a member of group snapshot %s and goes with it; call DeleteVolumeGroupSnapshot", found.GroupID)
	default:
		return s.removeSnapshots(ctx, nil, found)
	}
}

// checkSnapshotID is rpc.CheckVolumeID for the id of a snapshot.
func checkSnapshotID(id string) error {
	if id == "" {
		return rpc.Invalid("snapshot_id is missing")
	}

	if err := volume.CheckID(id); err != nil {
		return rpc.Invalid("snapshot_id: %w", err)
	}

	return nil
}
