package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerGetCapabilities answers with what is not disabled (CSI v1.13,
// ControllerGetCapabilities).
func (s *Service) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: s.config.Capabilities.Controller()}, nil
}
