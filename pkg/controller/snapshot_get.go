package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

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
