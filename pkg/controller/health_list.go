package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

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
