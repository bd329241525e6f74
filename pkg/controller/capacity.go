package controller

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
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
	parameters, p, err := s.choosePool(request.GetParameters())
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

// choosePool reads the parameters and finds the pool that they name. Errors:
// INVALID_ARGUMENT, UNAVAILABLE while the pool cannot be used.
func (s *Service) choosePool(given map[string]string) (volume.Parameters, *pool.Pool, error) {
	parameters, err := volume.ParseParameters(given)
	if err != nil {
		return volume.Parameters{}, nil, rpc.Invalid("parameters: %w", err)
	}

	if _, named := given[volume.KeyPool]; !named {
		parameters.Pool = s.pools.Default()
	}

	if !s.pools.Has(parameters.Pool) {
		return volume.Parameters{}, nil, rpc.Invalid("parameters: pool %q does not exist; there are %s",
			parameters.Pool, strings.Join(s.pools.Names(), ", "))
	}

	p, err := s.pools.Get(parameters.Pool)

	return parameters, p, err
}

// sizeFor returns the size of a new volume: what is required, rounded up, but
// not less than the filesystem needs. Errors: INVALID_ARGUMENT for a range
// that makes no sense, OUT_OF_RANGE for one that can't be met.
func (s *Service) sizeFor(asked *csi.CapacityRange, smallest int64) (int64, error) {
	if err := rpc.CheckCapacityRange(asked); err != nil {
		return 0, err
	}

	required, limit := asked.GetRequiredBytes(), asked.GetLimitBytes()

	switch {
	case asked == nil:
		required = DefaultBytes
		if s.config.MaxVolumeBytes > 0 {
			required = min(required, s.config.MaxVolumeBytes/RoundBytes*RoundBytes)
		}
	case required == 0:
		required = min(limit/RoundBytes*RoundBytes, DefaultBytes)
	case required > math.MaxInt64-RoundBytes:
		return 0, rpc.Errorf(codes.OutOfRange, "capacity_range: required_bytes %d is more than any volume can have", required)
	}

	size := max((required+RoundBytes-1)/RoundBytes*RoundBytes, smallest)

	if limit > 0 && size > limit {
		return 0, rpc.Errorf(codes.OutOfRange,
			"capacity_range: the smallest volume that holds %d bytes has %d, more than limit_bytes %d", required, size, limit)
	}

	if s.config.MaxVolumeBytes > 0 && size > s.config.MaxVolumeBytes {
		return 0, rpc.Errorf(codes.OutOfRange,
			"capacity_range: %d bytes are more than the largest volume has, %d (--max-volume-size)", size, s.config.MaxVolumeBytes)
	}

	return size, nil
}

// minimumBytes is the smallest volume with these parameters.
func minimumBytes(parameters volume.Parameters, capabilities []volume.Capability) int64 {
	smallest := int64(RoundBytes)

	for _, capability := range capabilities {
		if capability.Block || parameters.Backing == volume.BackingDirectory {
			continue
		}

		// Which filesystems there are was checked with the capability.
		if made, err := filesystem.ByName(fsTypeOf(parameters, capability), nil); err == nil {
			smallest = max(smallest, (made.MinimumBytes()+RoundBytes-1)/RoundBytes*RoundBytes)
		}
	}

	return smallest
}

func fsTypeOf(parameters volume.Parameters, capability volume.Capability) string {
	if capability.FSType != "" {
		return capability.FSType
	}

	return parameters.FSType
}
