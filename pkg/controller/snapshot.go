package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
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
		return nil, err
	}

	call := rpc.VolumeCall(wanted.sourceID, "snapshot "+wanted.name, "CreateSnapshot", request)

	for {
		_, found, ok := s.catalog.Snapshots.Lookup(record.NameIndex, wanted.name)
		if ok && found.Phase == record.PhaseCopying && s.copies.Running(found.ID) {
			if err := s.checkSameSnapshot(found, wanted); err != nil {
				return nil, err
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

		// Of a copy that failed meanwhile the next turn returns the error.
		if err := s.catalog.AcknowledgeSnapshot(ctx, wanted.name); err != nil {
			return nil, err
		}
	}
}

func (s *Service) parseSnapshot(request *csi.CreateSnapshotRequest) (*snapshotRequest, error) {
	if err := checkName(request.GetName()); err != nil {
		return nil, err
	}

	if err := rpc.CheckID("source_volume_id", request.GetSourceVolumeId()); err != nil {
		return nil, err
	}

	advertised := s.hasTopology() && s.has(capability.SnapshotConstraints)
	if err := record.CheckTopologyRequirement(request.GetAccessibilityRequirements(), advertised); err != nil {
		return nil, err
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
			_, found, ok := s.catalog.Snapshots.Lookup(record.NameIndex, name)

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

func (s *Service) ensureSnapshot(ctx context.Context, wanted *snapshotRequest) (*record.Snapshot, error) {
	id, existing, exists := s.catalog.Snapshots.Lookup(record.NameIndex, wanted.name)
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
		case existing.IsVisible():
			return nil, rpc.Errorf(codes.Internal, "the copy of snapshot %s has failed, as the log says, and its source may have changed since; "+
				"delete it and take another", id)
		}
	}

	if err := s.segments.CheckRequirement(wanted.topology); err != nil {
		return nil, err
	}

	source, err := s.catalog.FindVolume(wanted.sourceID)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q: %w", wanted.name, err)
	}

	fresh, err := s.newSnapshot(ctx, source, wanted.consistency)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q: %w", wanted.name, err)
	}

	fresh.Name = wanted.name

	if exists {
		fresh.ID, fresh.Phase = id, existing.Phase
	}

	if err := s.takeSnapshots(ctx, nil, []*record.Volume{source}, []*record.Snapshot{fresh}); err != nil {
		return nil, fmt.Errorf("create snapshot %q of volume %s: %w", wanted.name, source.ID, err)
	}

	if err := s.config.Point.At(ctx, operation.SnapshotRecorded, fresh.ID, fresh.Name, source.ID); err != nil {
		return nil, err
	}

	return fresh.InPhase(record.PhaseReady), nil
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
	p, err := s.poolOf(source)
	if err != nil {
		return nil, err
	}

	id, err := volume.NewID()
	if err != nil {
		return nil, err
	}

	// What is missing has allocated nothing: prepareCopy makes it again if it was never used, or fails.
	allocated, err := p.AllocatedBytes(ctx, source.ID, source.Parameters.Backing)
	if err != nil && !errors.Is(err, pool.ErrMissing) {
		return nil, err
	}

	return &record.Snapshot{
		ID: id, SourceVolumeID: source.ID, SizeBytes: source.CapacityBytes, AllocatedBytes: allocated,
		Parameters: source.Parameters, Consistency: consistency, Raw: source.IsRaw(), Segments: source.Segments,
		CreatedAt: time.Now(), Phase: record.PhaseCreating,
	}, nil
}

// takeSnapshots takes a snapshot of each source, or leaves nothing behind. group is nil unless
// they are its members.
func (s *Service) takeSnapshots(
	ctx context.Context, group *record.Group, sources []*record.Volume, fresh []*record.Snapshot,
) error {
	// The records come first: after a crash they lead to what Commit has made.
	if err := s.catalog.ReserveSnapshots(ctx, group, fresh...); err != nil {
		return err
	}

	var plan *consistentTaking

	copies, err := s.prepareSnapshots(group, sources, fresh)
	if err == nil {
		plan, err = s.planTaking(fresh[0].Consistency, fresh[0].GroupID, copies)
	}

	if err == nil && group == nil && len(plan.frozen) == 0 && !copies[0].copy.PointInTime() {
		stoppable, end := s.copies.Start(ctx, fresh[0].ID)
		// Last: DeleteSnapshot waits until a stopped copy is undone.
		defer end()

		ctx = stoppable
	}

	if err == nil {
		err = s.fillSnapshots(ctx, group, plan, copies, fresh)
	}

	if err == nil {
		s.release(copies...)

		return nil
	}

	for _, each := range copies {
		err = errors.Join(err, each.abort(err))
	}

	return s.undoSnapshots(ctx, err, group, fresh...)
}

// prepareSnapshots prepares the copies, of which it also returns those before a failed one.
func (s *Service) prepareSnapshots(
	group *record.Group, sources []*record.Volume, fresh []*record.Snapshot,
) ([]*pendingCopy, error) {
	kind := "snapshot"
	if group != nil {
		kind = "group snapshot"
	}

	copies := make([]*pendingCopy, 0, len(fresh))

	for i, source := range sources {
		sourcePool, err := s.poolOf(source)
		if err != nil {
			return copies, err
		}

		prepared, err := s.prepareCopy(source, sourcePool, fresh[i].Object(), kind, pool.CopyOptions{})
		if err != nil {
			return copies, err
		}

		copies = append(copies, prepared)
	}

	return copies, nil
}

// fillSnapshots takes the copies and makes them the snapshots.
func (s *Service) fillSnapshots(
	ctx context.Context, group *record.Group, plan *consistentTaking, copies []*pendingCopy, fresh []*record.Snapshot,
) error {
	err := s.takeCopies(ctx, plan, copies)
	if err != nil {
		if errors.Is(context.Cause(ctx), catalog.ErrDeleted) {
			return catalog.SnapshotDeleted(fresh[0].ID)
		}

		return err
	}

	for i, each := range fresh {
		each.CreatedAt = copies[i].at

		if each.AllocatedBytes, err = copies[i].copy.Commit(ctx); err != nil {
			return err
		}

		if err := s.config.Point.At(ctx, operation.SnapshotCopied, each.ID, each.Name, each.SourceVolumeID); err != nil {
			return err
		}
	}

	if group != nil {
		group.CreatedAt = copies[0].at
		s.config.Log.Info("group snapshot taken", "group", group.ID, "members", len(fresh), "frozen", len(plan.frozen),
			"atomic", len(plan.inGroup), "skew", skew(fresh))
	}

	return s.catalog.AcceptSnapshots(ctx, group, fresh...)
}

// release ends copies that are committed.
func (s *Service) release(committed ...*pendingCopy) {
	for _, each := range committed {
		if err := each.abort(nil); err != nil {
			s.config.Log.Warn("cannot release the resources of a finished copy", "object", each.target, "error", err)
		}
	}
}

// DeleteSnapshot makes a snapshot and its data be gone (CSI v1.13,
// DeleteSnapshot). One that is read by a restore is refused with ABORTED, a
// member of a group with INVALID_ARGUMENT.
func (s *Service) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := request.GetSnapshotId()
	if err := rpc.CheckID("snapshot_id", id); err != nil {
		return nil, err
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
	found, ok := s.catalog.Snapshots.Get(id)

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
