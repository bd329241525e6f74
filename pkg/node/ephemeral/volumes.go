package ephemeral

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Config configures the volumes.
type Config struct {
	// Pools are the pools by their names; Directories are the directories of ephemeral volumes in
	// them, under the same names.
	Pools, Directories *pool.Set
	Access             *access.Provider
	Prober             *probe.Prober
	Dirs               *mount.AllowedDirs
	Loops              *loop.Loops
	Operations         *operation.Group
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
type Volumes struct {
	config      Config
	records     *staged.Records[*Volume]
	provisioned pool.Provisioned
}

// New returns the volumes, which keep their records in store. It must not be open yet.
func New(config Config, store *state.Store) *Volumes {
	v := &Volumes{config: config}
	v.records = NewRecords(store, state.WithObserver(v.observe))

	return v
}

// observe updates the sum of the pool with a change of the store.
func (v *Volumes) observe(_ string, old, now *Volume, hadOld, hasNow bool) {
	if hadOld {
		v.provisioned.Add(old.Parameters.Pool, -old.SizeBytes)
	}

	if hasNow {
		v.provisioned.Add(now.Parameters.Pool, now.SizeBytes)
	}
}

// Load reads the records. It follows the opening of the store.
func (v *Volumes) Load() { v.records.Load() }

// Get returns the volume with the CO's id.
func (v *Volumes) Get(id string) (*Volume, bool) { return v.records.Get(id) }

// At returns the volume with that id if the path is its target.
func (v *Volumes) At(id, path string) (*Volume, bool) {
	found, ok := v.records.Get(id)
	if !ok || found.Publication.TargetPath != path {
		return nil, false
	}

	return found, true
}

// All returns all volumes.
func (v *Volumes) All() []*Volume { return v.records.All() }

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

	return rpc.Run(ctx, v.config.Log, v.config.Operations, rpc.VolumeCall(id, target, "NodePublishVolume", request),
		func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
			if err := v.ensure(ctx, wanted); err != nil {
				return nil, fmt.Errorf("publish ephemeral volume %s at %s: %w", id, target, err)
			}

			return &csi.NodePublishVolumeResponse{}, nil
		})
}

// Unpublish unmounts and removes the volume with that id whose target is the path, if there is one.
func (v *Volumes) Unpublish(ctx context.Context, id, target string) error {
	existing, known := v.At(id, target)
	if !known {
		return nil
	}

	return v.remove(ctx, existing)
}

// ProvisionedBytes returns the total size of inline ephemeral volumes in the pool.
func (v *Volumes) ProvisionedBytes(poolName string) int64 { return v.provisioned.Bytes(poolName) }

// AddAllocated adds what inline ephemeral volumes have allocated in the pool.
func (v *Volumes) AddAllocated(ctx context.Context, poolName string, sum *pool.Allocation) error {
	for _, each := range v.records.All() {
		if each.Parameters.Pool != poolName {
			continue
		}

		stored, err := v.config.Access.PoolOf(each.StagedVolume())
		if err != nil {
			return err
		}

		if err := sum.Add(ctx, stored, each.object()); err != nil {
			return err
		}
	}

	return nil
}
