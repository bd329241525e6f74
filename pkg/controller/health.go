package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerGetVolumeHealth returns the cached health of one volume's pool object
// (CSI v1.13, ControllerGetVolumeHealth). It waits for no probe.
func (s *Service) ControllerGetVolumeHealth(
	ctx context.Context, request *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if err := s.health.Monitor.AwaitRelist(ctx); err != nil {
		return nil, err
	}

	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: s.health.reported(found.ID).VolumeHealth(found.ID)}, nil
}

// ControllerListVolumeHealth lists the unhealthy volumes, ordered by id (CSI v1.13,
// ControllerListVolumeHealth). The token is the last id that was returned; it remains
// valid when that volume recovers or is deleted.
func (s *Service) ControllerListVolumeHealth(
	ctx context.Context, request *csi.ControllerListVolumeHealthRequest,
) (*csi.ControllerListVolumeHealthResponse, error) {
	listed, err := newPage[*csi.VolumeHealth]("ControllerListVolumeHealth", request)
	if err != nil {
		return nil, err
	}

	if err := s.health.Monitor.AwaitRelist(ctx); err != nil {
		return nil, err
	}

	for _, unhealthy := range s.health.reportedUnhealthy(request.GetStartingToken()) {
		// One may have been deleted since.
		if _, ok := s.catalog.ReadyVolume(unhealthy.ID); ok && !listed.add(unhealthy.ID, unhealthy.VolumeHealth(unhealthy.ID)) {
			break
		}
	}

	return &csi.ControllerListVolumeHealthResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}
