package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ControllerGetCapabilities answers with what is not disabled (CSI v1.13,
// ControllerGetCapabilities).
func (s *Service) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: s.config.Capabilities.Controller()}, nil
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
