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
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/stats"
)

// NodeExpandVolume lets the device and the filesystem of a volume that is in
// use take the size of its image (CSI v1.13, NodeExpandVolume). Where the
// kernel does not permit that for a mounted filesystem, it is
// FAILED_PRECONDITION, and the next staging grows it.
func (s *Service) NodeExpandVolume(
	ctx context.Context, request *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	wanted, err := parseExpansion(request)
	if err != nil {
		return nil, err
	}

	if _, err := wanted.find(&s.config.Common, s.volumes); err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(wanted.volumeID)

	call := operation.VolumeCall(wanted.volumeID, "size", "NodeExpandVolume", request)
	doing := fmt.Sprintf("expand volume %s at %s", wanted.volumeID, wanted.path)
	answer := &csi.NodeExpandVolumeResponse{}

	return run(ctx, &s.config.Common, call, doing, answer, func(ctx context.Context) (err error) {
		answer.CapacityBytes, err = s.lifecycle.expand(ctx, wanted)

		return err
	})
}

// expansionRequest is a valid NodeExpandVolumeRequest.
type expansionRequest struct {
	volumeID, path string
	asked          *csi.CapacityRange
	// capability is nil where the request has none.
	capability *volume.Capability
}

// parseExpansion parses a request, and refuses what is invalid in any state.
func parseExpansion(request *csi.NodeExpandVolumeRequest) (expansionRequest, error) {
	wanted := expansionRequest{
		volumeID: request.GetVolumeId(), path: plain(request.GetVolumePath()), asked: request.GetCapacityRange(),
	}

	err := cmp.Or(checkUse(wanted.volumeID, wanted.path, request.GetStagingTargetPath()), rpc.CheckCapacityRange(wanted.asked))
	if err != nil || request.GetVolumeCapability() == nil {
		return wanted, err
	}

	given, err := volume.ParseCapability(request.GetVolumeCapability())
	if err != nil {
		return wanted, rpc.Invalid("volume_capability: %w", err)
	}

	wanted.capability = &given

	return wanted, nil
}

// find returns the volume at the path. Errors: NOT_FOUND; INVALID_ARGUMENT for another capability;
// FAILED_PRECONDITION for an inline volume, which keeps its size.
func (e expansionRequest) find(config *Common, volumes stats.Volumes) (*staged.Volume, error) {
	v, err := volumes.At(e.volumeID, e.path)
	if v != nil {
		// Of an unknown volume, any path is NOT_FOUND.
		err = cmp.Or(rpc.CheckAbsolute("volume_path", e.path), err)
	}

	if err != nil {
		return nil, err
	}

	if err := checkHas(config, v, e.capability); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	if v.Ephemeral {
		return nil, rpc.Errorf(codes.FailedPrecondition,
			"volume %s is an inline ephemeral one and keeps its size; recreate the pod with another %s", e.volumeID, volume.KeySize)
	}

	return v, nil
}

// expand grows what the volume is stored in, where no controller does it, its device and its filesystem.
func (l *lifecycle) expand(ctx context.Context, wanted expansionRequest) (int64, error) {
	v, err := wanted.find(&l.config.Common, l.volumes)
	if err != nil {
		return 0, err
	}

	if err := l.ways.CheckLength(v); err != nil {
		return 0, err
	}

	if err := growStored(l.config, l.pools, v, wanted.asked); err != nil {
		return 0, err
	}

	return l.ways.For(v).Expand(ctx, v, wanted.path, wanted.asked)
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
func checkHas(config *Common, v *staged.Volume, wanted *volume.Capability) error {
	if wanted == nil {
		return nil
	}

	if wanted.Block != v.Capability.Block {
		return fmt.Errorf("%w: it is not staged for this access type", volume.ErrCapability)
	}

	return checkCapability(config, v, *wanted)
}
