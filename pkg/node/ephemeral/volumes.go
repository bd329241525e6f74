package ephemeral

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Config configures the volumes.
type Config struct {
	// Pools are the pools by their names; Directories are the directories of ephemeral volumes in
	// them, under the same names.
	Pools, Directories *pool.Set
	Records            *staged.InlineRecords
	// Stored finds the pools of the volumes.
	Stored     staged.Pools
	Ways       *access.Ways
	Devices    *device.Devices
	Observer   *observe.Observer
	Prober     *probe.Prober
	Dirs       *mount.AllowedDirs
	Loops      *loop.Loops
	Operations *operation.Group
	// Admission decides what may be provisioned from the pools.
	Admission    *pool.Admission
	Capabilities capability.Set
	// MaxVolumeBytes is the largest size; 0 is no limit but the pool's.
	MaxVolumeBytes int64
	// MkfsOptions allows mkfs options, which the author of a pod writes.
	MkfsOptions bool
	// Run starts the tools of the filesystems; nil means the real ones.
	Run filesystem.Runner
	Log *slog.Logger
}

// Volumes are the inline ephemeral volumes of this node. They are safe for concurrent use; calls of
// one volume are ordered by Config.Operations.
type Volumes struct{ config Config }

// New returns the volumes.
func New(config Config) *Volumes { return &Volumes{config: config} }

// Publish is NodePublishVolume of a volume that exists from its publication to its unpublication.
// Target is the normalized target path.
func (v *Volumes) Publish(
	ctx context.Context, request *csi.NodePublishVolumeRequest, target string,
) (*csi.NodePublishVolumeResponse, error) {
	wanted, err := v.parse(request, target)
	if err != nil {
		return nil, err
	}

	id := wanted.VolumeID

	defer v.config.Prober.ProbeAfterOperation(id)

	return operation.DoLogged(ctx, v.config.Log, v.config.Operations, operation.VolumeCall(id, target, "NodePublishVolume", request),
		func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
			if err := v.ensure(ctx, wanted); err != nil {
				return nil, fmt.Errorf("publish ephemeral volume %s at %s: %w", id, target, err)
			}

			return &csi.NodePublishVolumeResponse{}, nil
		})
}

// Unpublish unmounts and removes the volume with that id whose target is the path, if there is one.
func (v *Volumes) Unpublish(ctx context.Context, id, target string) error {
	existing, known := v.config.Records.At(id, target)
	if !known {
		return nil
	}

	return v.remove(ctx, existing)
}

// ProvisionedBytes returns the total size of inline ephemeral volumes in the pool.
func (v *Volumes) ProvisionedBytes(poolName string) int64 {
	return v.config.Records.ProvisionedBytes(poolName)
}

// AddAllocated adds what inline ephemeral volumes have allocated in the pool.
func (v *Volumes) AddAllocated(ctx context.Context, poolName string, sum *pool.Allocation) error {
	for _, each := range v.config.Records.All() {
		if each.Parameters.Pool != poolName {
			continue
		}

		stored, err := v.config.Stored.Of(each.StagedVolume())
		if err != nil {
			return err
		}

		if err := sum.Add(ctx, stored, each.Object()); err != nil {
			return err
		}
	}

	return nil
}
