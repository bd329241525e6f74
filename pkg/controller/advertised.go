package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ControllerGetCapabilities answers with what is not disabled (CSI v1.13,
// ControllerGetCapabilities).
func (s *Service) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: s.config.Capabilities.Controller()}, nil
}

func (s *Service) has(name capability.Name) bool { return s.config.Capabilities.HasController(name) }

// hasTopology reports whether the plugin advertises VOLUME_ACCESSIBILITY_CONSTRAINTS.
func (s *Service) hasTopology() bool { return s.segments != "" }

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

// checkReadonly refuses what a CO must not ask for (CSI v1.13,
// ControllerPublishVolumeRequest.readonly).
func (s *Service) checkReadonly(asked bool) error {
	if asked && !s.has(capability.PublishReadonly) {
		return rpc.Invalid("readonly must be false, as the capability %s is not advertised", capability.PublishReadonly)
	}

	return nil
}

// allocatePristineDurably syncs the objects of all volumes of a pool that were never attached,
// because no attachment will do it without that capability (docs/decisions/0005).
func (s *Service) allocatePristineDurably(ctx context.Context, p *pool.Pool) error {
	if s.has(capability.PublishUnpublishVolume) {
		return nil
	}

	var changed []*record.Volume

	failed := error(nil)

	s.catalog.Volumes.Ascend("", func(_ string, v *record.Volume) bool {
		if v.Parameters.Pool != p.Name() || v.Phase != record.PhaseReady || !v.Pristine {
			return true
		}

		if failed = objects.AllocateDurably(v, p); failed != nil {
			return false
		}

		changed = append(changed, v)

		return true
	})

	if failed != nil || len(changed) == 0 {
		return failed
	}

	return s.catalog.SetDurable(ctx, changed)
}
