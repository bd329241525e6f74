package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
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
			"volume %s is an inline ephemeral one and keeps its size; make the pod anew with another %s", id, volume.KeySize)
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

	if !use.IsImage() {
		return required, nil
	}

	numbers, err := s.deviceNumbers(use, path)
	if err != nil {
		return 0, err
	}

	size := int64(0)

	for _, number := range numbers {
		if size, err = s.loops.Resize(number); err != nil {
			return 0, err
		}
	}

	if size < required {
		return 0, rpc.Errorf(codes.OutOfRange,
			"its device has %d bytes, less than required_bytes %d; call ControllerExpandVolume first", size, required)
	}

	switch {
	case use.Capability.Block, use.IsReadOnly():
		return size, nil
	case use.IsDirect():
		return size, s.growDirect(ctx, use, size)
	}

	return size, s.growMounted(ctx, use, size)
}

// deviceNumbers returns the loop devices that the volume is used through.
func (s *Service) deviceNumbers(use *staged.Volume, path string) ([]int, error) {
	gone := rpc.Errorf(codes.NotFound, "volume %s is not at %s any more", use.VolumeID, path)

	if use.ExposesRawDevice() {
		known, err := s.devices.get(use.VolumeID)
		if err != nil {
			return nil, err
		}

		if known.staged == none {
			return nil, gone
		}

		if known.readOnly == none {
			return []int{known.staged}, nil
		}

		return []int{known.readOnly, known.staged}, nil
	}

	point, mounted, err := s.mountAt(path)
	if err != nil {
		return nil, err
	}

	number, isLoop := loopNumber(point)
	if !mounted || !isLoop {
		return nil, gone
	}

	ours, err := s.ours(use, point)
	if err == nil && !ours {
		err = gone
	}

	if err != nil {
		return nil, err
	}

	return []int{number}, nil
}

// growMounted works through the staging path, which is writable even where the
// publication is not.
func (s *Service) growMounted(ctx context.Context, use *staged.Volume, size int64) error {
	used, err := filesystem.ByName(use.FSType(), s.config.Run)
	if err != nil {
		return err
	}

	place, err := s.places.Target(use.StagingPath)
	if err != nil {
		return err
	}
	defer place.Close()

	root, err := place.OpenDir()
	if err != nil {
		return err
	}
	defer root.Close()

	if err := used.GrowMounted(ctx, root, size); err != nil {
		return fmt.Errorf("grow the mounted %s (the next NodeStageVolume grows it, too): %w", used.Name(), err)
	}

	if used.GrowthSurvivesCrash() {
		return nil
	}

	// A freeze writes back what is in the log. Also of a growth that an earlier
	// call was killed after.
	return s.WithFrozen(ctx, []string{use.VolumeID}, func(context.Context) error { return nil })
}
