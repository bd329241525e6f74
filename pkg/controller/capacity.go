package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

const (
	// RoundBytes is what the size of every volume is a multiple of.
	RoundBytes = 4096
	// DefaultBytes is the size of a volume for which none is asked.
	DefaultBytes = 1 << 30
)

// GetCapacity returns how many more bytes can be provisioned from a pool (CSI v1.13,
// GetCapacity).
func (s *Service) GetCapacity(ctx context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	parameters, err := s.parseParameters(request.GetParameters())
	if err != nil {
		return nil, err
	}

	p, err := s.config.Pools.Get(parameters.Pool)
	if err != nil {
		return nil, err
	}

	if len(request.GetAccessibleTopology().GetSegments()) > 0 && !s.hasTopology() {
		return nil, rpc.Invalid("accessible_topology must be empty, as the capability for it is not advertised")
	}

	if err := record.CheckTopology("accessible_topology", request.GetAccessibleTopology()); err != nil {
		return nil, err
	}

	if !s.segments.Within(request.GetAccessibleTopology()) {
		return &csi.GetCapacityResponse{}, nil
	}

	capabilities, err := s.parseCapabilities(request.GetVolumeCapabilities(), parameters)
	if errors.Is(err, volume.ErrIncomplete) {
		return nil, rpc.Invalid("volume_capabilities: %w", err)
	}

	if err != nil {
		// No volume can have these capabilities, so the capacity for them is 0.
		return &csi.GetCapacityResponse{}, nil //nolint:nilerr // see above
	}

	available, err := s.config.Admission.Capacity(ctx, p, parameters.Provisioning == volume.Thick)
	if err != nil {
		return nil, err
	}

	available = available / RoundBytes * RoundBytes

	largest := available
	if s.config.MaxVolumeBytes > 0 {
		largest = min(largest, s.config.MaxVolumeBytes/RoundBytes*RoundBytes)
	}

	return &csi.GetCapacityResponse{
		AvailableCapacity: available,
		MaximumVolumeSize: wrapperspb.Int64(largest),
		MinimumVolumeSize: wrapperspb.Int64(minimumBytes(parameters, capabilities)),
	}, nil
}
