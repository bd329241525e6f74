package controller

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// CreateSnapshot makes a snapshot of a volume, or returns the one of that name
// if it is of that volume (CSI v1.13, CreateSnapshot). Once the source can't
// change any more, a caller waits CopyGrace for the copy and then gets the answer
// that it is not ready.
func (s *Service) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	wanted, err := s.parseSnapshot(request)
	if err != nil {
		return nil, err
	}

	call := operation.VolumeCall(wanted.sourceID, "snapshot "+wanted.name, "CreateSnapshot", request)

	made, err := s.copies.Await(ctx, wanted.name, func(ctx context.Context) (*record.Snapshot, error) {
		return operation.DoLogged(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (*record.Snapshot, error) {
			return s.ensureSnapshot(ctx, wanted)
		})
	})
	if err != nil {
		return nil, err
	}

	if err := checkSameSnapshot(made, wanted); err != nil {
		return nil, err
	}

	return &csi.CreateSnapshotResponse{Snapshot: s.describeSnapshot(made)}, nil
}

func (s *Service) ensureSnapshot(ctx context.Context, wanted *snapshotRequest) (*record.Snapshot, error) {
	id, existing, exists := s.catalog.Snapshots.Lookup(record.NameIndex, wanted.name)
	if exists {
		err := checkSameSnapshot(existing, wanted)

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

	// Those of the snapshot, which may have been other ones when the volume was made.
	if err := source.Segments.CheckRequirement(wanted.topology); err != nil {
		return nil, err
	}

	fresh, err := s.copies.NewSnapshot(ctx, source, wanted.consistency)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q: %w", wanted.name, err)
	}

	fresh.Name = wanted.name

	if exists {
		fresh.ID, fresh.Phase = id, existing.Phase
	}

	if err := s.copies.TakeSnapshot(ctx, source, fresh); err != nil {
		return nil, fmt.Errorf("create snapshot %q of volume %s: %w", wanted.name, source.ID, err)
	}

	if err := s.config.Point.At(ctx, operation.SnapshotRecorded, fresh.ID, fresh.Name, source.ID); err != nil {
		return nil, err
	}

	return fresh.InPhase(record.PhaseReady), nil
}

// checkSameSnapshot returns ALREADY_EXISTS unless found is what is wanted.
func checkSameSnapshot(found *record.Snapshot, wanted *snapshotRequest) error {
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

// snapshotRequest is a valid CreateSnapshotRequest.
type snapshotRequest struct {
	name, sourceID string
	consistency    volume.Consistency
	topology       *csi.TopologyRequirement
}

func (p *parser) parseSnapshot(request *csi.CreateSnapshotRequest) (*snapshotRequest, error) {
	advertised := p.hasTopology() && p.has(capability.SnapshotConstraints)
	if err := cmp.Or(
		checkName(request.GetName()),
		rpc.CheckID("source_volume_id", request.GetSourceVolumeId()),
		record.CheckTopologyRequirement(request.GetAccessibilityRequirements(), advertised),
	); err != nil {
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

func (s *Service) describeSnapshot(found *record.Snapshot) *csi.Snapshot {
	described := &csi.Snapshot{
		SnapshotId:      found.ID,
		SourceVolumeId:  found.SourceVolumeID,
		SizeBytes:       found.SizeBytes,
		CreationTime:    timestamppb.New(found.CreatedAt),
		ReadyToUse:      found.Phase == record.PhaseReady,
		GroupSnapshotId: found.GroupID,
	}

	if s.has(capability.SnapshotConstraints) {
		described.AccessibleTopology = found.Segments.AccessibleTopology()
	}

	return described
}
