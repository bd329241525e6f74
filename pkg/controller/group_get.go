package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// GetVolumeGroupSnapshot describes one group (CSI v1.13,
// GetVolumeGroupSnapshot).
func (g *Groups) GetVolumeGroupSnapshot(
	_ context.Context, request *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	id := request.GetGroupSnapshotId()
	if err := rpc.CheckID("group_snapshot_id", id); err != nil {
		return nil, err
	}

	found, ok := g.service.catalog.Groups.Get(id)
	if !ok || found.Phase != record.PhaseReady {
		return nil, rpc.Errorf(codes.NotFound, "group snapshot %s does not exist", id)
	}

	if err := found.CheckMembers(request.GetSnapshotIds()); err != nil {
		return nil, err
	}

	described, err := g.describeGroup(found)
	if err != nil {
		return nil, err
	}

	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: described}, nil
}
