package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// ControllerGetVolumeHealth returns the cached health of one volume's pool object
// (CSI v1.13, ControllerGetVolumeHealth). It waits for no probe.
func (s *Service) ControllerGetVolumeHealth(
	ctx context.Context, request *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if err := s.health.Monitor.AwaitRelist(ctx); err != nil {
		return nil, err
	}

	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: s.health.reported(found.ID).VolumeHealth(found.ID)}, nil
}
