package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// NodeExpandVolume lets the device and the filesystem of a volume that is in
// use take the size of its image (CSI v1.13, NodeExpandVolume). Where the
// kernel does not permit that for a mounted filesystem, it is
// FAILED_PRECONDITION, and the next staging grows it.
func (s *Service) NodeExpandVolume(
	ctx context.Context, request *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, rpc.Status(err)
	}

	path := plain(request.GetVolumePath())
	if path == "" {
		return nil, rpc.Invalid("volume_path is missing")
	}

	asked := request.GetCapacityRange()
	if asked.GetRequiredBytes() < 0 || asked.GetLimitBytes() < 0 ||
		asked.GetLimitBytes() > 0 && asked.GetLimitBytes() < asked.GetRequiredBytes() {
		return nil, rpc.Invalid("capacity_range: required_bytes %d and limit_bytes %d make no range",
			asked.GetRequiredBytes(), asked.GetLimitBytes())
	}

	if given := request.GetVolumeCapability(); given != nil {
		if _, err := volume.ParseCapability(given); err != nil {
			return nil, rpc.Status(rpc.Invalid("volume_capability: %w", err))
		}
	}

	use, err := s.usedAt(id, path)
	if err != nil {
		return nil, rpc.Status(err)
	}

	if use.Ephemeral {
		return nil, rpc.Errorf(codes.FailedPrecondition,
			"volume %s is an inline ephemeral one and keeps its size; recreate the pod with another %s", id, volume.KeySize)
	}

	defer s.prober.ProbeAfterOperation(id)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, "size", "NodeExpandVolume", request),
		func(ctx context.Context) (*csi.NodeExpandVolumeResponse, error) {
			size, err := s.expand(ctx, id, path, asked.GetRequiredBytes())
			if err != nil {
				return nil, fmt.Errorf("expand volume %s at %s: %w", id, path, err)
			}

			return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
		})
}

func (s *Service) expand(ctx context.Context, id, path string, required int64) (int64, error) {
	use, err := s.usedAt(id, path)
	if err != nil {
		return 0, err
	}

	return s.access.For(use).Expand(ctx, use, path, required)
}
