package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
)

// ControllerExpandVolume makes a volume larger, attached or not (CSI v1.13,
// ControllerExpandVolume). The node then has to take notice of an image.
func (s *Service) ControllerExpandVolume(
	ctx context.Context, request *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	asked := request.GetCapacityRange()
	if asked == nil {
		return nil, rpc.Invalid("capacity_range is missing")
	}

	if err := rpc.CheckCapacityRange(asked); err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if given := request.GetVolumeCapability(); given != nil {
		if err := s.checkCapability(given, found); err != nil {
			return nil, rpc.Invalid("volume_capability: %w", err)
		}
	}

	// A volume may be larger than the maximum, which was lowered since it was made.
	size := found.CapacityBytes
	if asked.GetRequiredBytes() > size {
		if size, err = s.sizeFor(asked, RoundBytes); err != nil {
			return nil, err
		}
	}

	wanted := changes.Request{Size: size, Limit: asked.GetLimitBytes()}
	// What is wrong with this request alone is no other's failure.
	if err := s.changes.Check(ctx, found, wanted); err != nil {
		return nil, fmt.Errorf("expand volume %s to %d bytes: %w", found.ID, size, err)
	}

	expanded, err := s.changes.Make(ctx, found, wanted)
	if err != nil {
		return nil, err
	}

	// Where the node does not expand, the next staging does.
	onNode := expanded.Parameters.Backing.HasDevice() && s.config.Capabilities.HasNode(capability.ExpandVolume)

	return &csi.ControllerExpandVolumeResponse{CapacityBytes: expanded.CapacityBytes, NodeExpansionRequired: onNode}, nil
}
