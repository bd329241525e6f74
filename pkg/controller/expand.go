package controller

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
)

// ControllerExpandVolume makes a volume larger, attached or not (CSI v1.13,
// ControllerExpandVolume). The node then has to take notice of an image.
func (s *Service) ControllerExpandVolume(
	ctx context.Context, request *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	wanted, err := s.parseExpand(request)
	if err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(wanted.volumeID)
	if err != nil {
		return nil, err
	}

	if wanted.capability != nil {
		if err := s.checkCapability(*wanted.capability, found); err != nil {
			return nil, rpc.Invalid("volume_capability: %w", err)
		}
	}

	// A volume may be larger than the maximum, which was lowered since it was made.
	size := found.CapacityBytes
	if wanted.asked.GetRequiredBytes() > size {
		if size, err = s.sizeFor(wanted.asked, RoundBytes); err != nil {
			return nil, err
		}
	}

	change := changes.Request{Size: size, Limit: wanted.asked.GetLimitBytes()}
	// What is wrong with this request alone is no other's failure.
	if err := s.changes.Check(ctx, found, change); err != nil {
		return nil, fmt.Errorf("expand volume %s to %d bytes: %w", found.ID, size, err)
	}

	expanded, err := s.changes.Make(ctx, found, change)
	if err != nil {
		return nil, err
	}

	// Where the node does not expand, the next staging does.
	onNode := expanded.Parameters.Backing.HasDevice() && s.config.Capabilities.HasNode(capability.ExpandVolume)

	return &csi.ControllerExpandVolumeResponse{CapacityBytes: expanded.CapacityBytes, NodeExpansionRequired: onNode}, nil
}

// expandRequest is a valid ControllerExpandVolumeRequest.
type expandRequest struct {
	volumeID string
	asked    *csi.CapacityRange
	// capability is nil if the request has none.
	capability *volume.Capability
}

func (p *parser) parseExpand(request *csi.ControllerExpandVolumeRequest) (*expandRequest, error) {
	wanted := &expandRequest{volumeID: request.GetVolumeId(), asked: request.GetCapacityRange()}
	if wanted.asked == nil {
		return nil, rpc.Invalid("capacity_range is missing")
	}

	if given := request.GetVolumeCapability(); given != nil {
		parsed, err := p.parseCapability(given)
		if err != nil {
			return nil, rpc.Invalid("volume_capability: %w", err)
		}

		wanted.capability = &parsed
	}

	return wanted, cmp.Or(rpc.CheckCapacityRange(wanted.asked), rpc.CheckVolumeID(wanted.volumeID))
}
