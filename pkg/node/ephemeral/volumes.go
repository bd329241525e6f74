package ephemeral

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Config configures the volumes.
type Config struct {
	// Config is that of the ways of access.
	access.Config

	Records    *staged.InlineRecords
	Ways       *access.Ways
	Prober     *probe.Prober
	Operations *operation.Group
	// Admission decides what may be provisioned from the pools.
	Admission    *pool.Admission
	Capabilities capability.Set
	// MaxVolumeBytes is the largest size; 0 is no limit but the pool's.
	MaxVolumeBytes int64
	// MkfsOptions allows mkfs options, which the author of a pod writes.
	MkfsOptions bool
}

// Volumes are the inline ephemeral volumes of this node. They are safe for concurrent use; calls of
// one volume are ordered by Config.Operations.
type Volumes struct{ config Config }

// New returns the volumes.
func New(config Config) *Volumes { return &Volumes{config: config} }

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

		stored, err := v.config.Pools.Of(each.StagedVolume())
		if err != nil {
			return err
		}

		if err := sum.Add(ctx, stored, each.Object()); err != nil {
			return err
		}
	}

	return nil
}
