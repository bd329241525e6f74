package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// NodeExpandVolume lets the device and the filesystem of a volume that is in
// use take the size of its image (CSI v1.13, NodeExpandVolume). Where the
// kernel does not permit that for a mounted filesystem, it is
// FAILED_PRECONDITION, and the next staging grows it.
func (s *Service) NodeExpandVolume(
	ctx context.Context, request *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	if _, err := s.config.parseExpansion(request, s.usedAt); err != nil {
		return nil, err
	}

	id, path, answer := request.GetVolumeId(), plain(request.GetVolumePath()), &csi.NodeExpandVolumeResponse{}

	defer s.prober.ProbeAfterOperation(id)

	return run(ctx, &s.config, id, "size", "NodeExpandVolume", request, answer, func(ctx context.Context) (err error) {
		defer errdefs.Wrapf(&err, "expand volume %s at %s", id, path)

		answer.CapacityBytes, err = s.expand(ctx, id, path, request.GetCapacityRange())

		return err
	})
}

// parseExpansion parses a request, refuses what is invalid, and returns the volume that usedAt finds.
func (c *Config) parseExpansion(
	request *csi.NodeExpandVolumeRequest, usedAt func(id, path string) (*staged.Volume, error),
) (*staged.Volume, error) {
	id, path := request.GetVolumeId(), plain(request.GetVolumePath())

	err := cmp.Or(checkUse(id, path, request.GetStagingTargetPath()), rpc.CheckCapacityRange(request.GetCapacityRange()))
	if err != nil {
		return nil, err
	}

	v, err := usedAt(id, path)
	if v != nil {
		// Of an unknown volume, any path is NOT_FOUND.
		err = cmp.Or(rpc.CheckAbsolute("volume_path", path), err)
	}

	if err != nil {
		return nil, err
	}

	if err := checkHas(c, v, request.GetVolumeCapability()); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	if v.Ephemeral {
		return nil, rpc.Errorf(codes.FailedPrecondition,
			"volume %s is an inline ephemeral one and keeps its size; recreate the pod with another %s", id, volume.KeySize)
	}

	return v, nil
}

func (s *Service) expand(ctx context.Context, id, path string, asked *csi.CapacityRange) (int64, error) {
	v, err := s.usedAt(id, path)
	if err != nil {
		return 0, err
	}

	if err := s.ways.CheckLength(v); err != nil {
		return 0, err
	}

	if err := growStored(&s.config, s.pools, v, asked); err != nil {
		return 0, err
	}

	return s.ways.For(v).Expand(ctx, v, path, asked)
}

// growStored enlarges the volume's image, or the limit of its directory, where no controller does it.
func growStored(config *Config, pools staged.Pools, v *staged.Volume, asked *csi.CapacityRange) error {
	if config.Capabilities.HasController(capability.ExpandVolume) {
		return nil
	}

	stored, err := pools.Of(v)
	if err != nil {
		return err
	}

	backing := stored.Backing(v.Parameters.Backing)

	size, limited, err := backing.Capacity(v.ObjectID())
	if err != nil || !limited || asked.GetRequiredBytes() <= size {
		return err
	}

	wanted := (asked.GetRequiredBytes() + volume.DefaultBlockSize - 1) / volume.DefaultBlockSize * volume.DefaultBlockSize
	for _, limit := range []int64{asked.GetLimitBytes(), config.MaxVolumeBytes} {
		if limit > 0 && wanted > limit {
			return rpc.Errorf(codes.OutOfRange, "capacity_range: the size %d is more than %d, which limit_bytes or --max-volume-size allows",
				wanted, limit)
		}
	}

	// A guest may have what is published: the host does not read that.
	if guest := v.IsDirect() && len(v.Publications) > 0; !v.Capability.Block && !guest {
		if err := backing.CheckGrowth(v.Object(), wanted); err != nil {
			return err
		}
	}

	growth := pool.Growth{From: size, To: wanted, Thick: v.Parameters.Provisioning == volume.Thick}

	return backing.Grow(v.ObjectID(), growth)
}

// checkHas refuses a capability that the volume does not have. None is no error.
func checkHas(config *Config, v *staged.Volume, given *csi.VolumeCapability) error {
	if given == nil {
		return nil
	}

	wanted, err := volume.ParseCapability(given)
	if err != nil {
		return err
	}

	if wanted.Block != v.Capability.Block {
		return fmt.Errorf("%w: it is not staged for this access type", volume.ErrCapability)
	}

	return checkCapability(config, v, wanted)
}
