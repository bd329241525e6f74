package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ListSnapshots lists snapshots in the order of their ids, which is that of
// their creation (CSI v1.13, ListSnapshots). The token is the last id that was
// returned; it stays valid when that snapshot is deleted. An unknown id is no
// error here.
func (s *Service) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	listed, err := newPage[*csi.ListSnapshotsResponse_Entry]("ListSnapshots", request)
	if err != nil {
		return nil, err
	}

	s.visitSnapshots(request, func(found *record.Snapshot) bool {
		return listed.add(found.ID, &csi.ListSnapshotsResponse_Entry{Snapshot: s.describeSnapshot(found)})
	})

	return &csi.ListSnapshotsResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}

// visitSnapshots calls visit for those that the request asks for, in order,
// until visit returns false.
func (s *Service) visitSnapshots(request *csi.ListSnapshotsRequest, visit func(*record.Snapshot) bool) {
	token, sourceID := request.GetStartingToken(), request.GetSourceVolumeId()

	id := request.GetSnapshotId()
	if id == "" {
		s.catalog.VisitSnapshots(sourceID, token, visit)

		return
	}

	if found, err := s.catalog.FindSnapshot(id); err == nil && id > token && (sourceID == "" || found.SourceVolumeID == sourceID) {
		visit(found)
	}
}

// GetSnapshot describes one snapshot (CSI v1.13, GetSnapshot).
func (s *Service) GetSnapshot(_ context.Context, request *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if err := rpc.CheckID("snapshot_id", request.GetSnapshotId()); err != nil {
		return nil, err
	}

	found, err := s.catalog.FindSnapshot(request.GetSnapshotId())
	if err != nil {
		return nil, err
	}

	return &csi.GetSnapshotResponse{Snapshot: s.describeSnapshot(found)}, nil
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
