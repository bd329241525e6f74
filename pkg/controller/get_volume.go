package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
)

// ControllerGetVolume describes one volume (CSI v1.13, ControllerGetVolume).
func (s *Service) ControllerGetVolume(
	ctx context.Context, request *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	found = s.advertised(found)
	status := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.NodeIDs()}

	if s.has(capability.VolumeCondition) {
		if err := s.health.Monitor.AwaitRelist(ctx); err != nil {
			return nil, err
		}

		health.PutCondition(status, s.health.reported(found.ID))
	}

	return &csi.ControllerGetVolumeResponse{Volume: describe(found), Status: status}, nil
}
