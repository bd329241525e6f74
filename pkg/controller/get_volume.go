package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
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

// advertised returns the volume without the fields whose capabilities are disabled.
func (s *Service) advertised(v *record.Volume) *record.Volume {
	topology, nodes := s.has(capability.VolumeAccessibilityConstraints), s.has(capability.ListVolumesPublishedNodes)
	if topology && nodes {
		return v
	}

	shown := v.Clone()
	if !topology {
		properties := *v.Properties
		properties.Segments, shown.Properties = "", &properties
	}

	if !nodes {
		shown.Attachments = nil
	}

	return shown
}

func describe(v *record.Volume) *csi.Volume {
	return &csi.Volume{
		VolumeId:           v.ID,
		CapacityBytes:      v.CapacityBytes,
		VolumeContext:      v.Context(),
		ContentSource:      v.Source.ContentSource(),
		AccessibleTopology: v.Segments.AccessibleTopology(),
	}
}
