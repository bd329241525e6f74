package changes

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// CheckMutable refuses with INVALID_ARGUMENT what such a volume can't have, or
// what the machine can't do.
func (c *Changes) CheckMutable(parameters volume.Parameters, mutable volume.Mutable) error {
	if mutable.IsZero() {
		return nil
	}

	if name := mutable.NeedsDevice(); name != "" && parameters.Backing == volume.BackingDirectory {
		return rpc.Invalid("mutable_parameters: %s: a directory has no device that it could hold for; use backing=image", name)
	}

	if err := c.Node.CheckSupported(mutable); err != nil {
		return rpc.Invalid("mutable_parameters: %w", err)
	}

	return nil
}

// applyMutable publishes the mutable parameters of the volume's record to all nodes and
// applies them on this one.
func (c *Changes) applyMutable(ctx context.Context, v *record.Volume, p *pool.Pool) error {
	if err := publishMutable(v, p); err != nil {
		return fmt.Errorf("recorded, but not in force: %w", err)
	}

	if err := c.Node.ApplyMutable(ctx, v.ID); err != nil {
		return fmt.Errorf("recorded, but not in force on node %s: %w", c.NodeID, err)
	}

	return nil
}

// publishMutable writes into the pool, where every node of the volume reads it,
// unless it is there.
func publishMutable(v *record.Volume, p *pool.Pool) error {
	// An unreadable file is written again.
	if there, err := p.Mutable(v.ID); err == nil && there.Equal(v.Mutable) {
		return nil
	}

	return p.SetMutable(v.ID, v.Mutable)
}

// Recover makes a pool say what the records do: a crash can come between the
// one and the other. exists says of which volumes the pool may have parameters.
func (c *Changes) Recover(ctx context.Context, p *pool.Pool, exists func(volumeID string) bool) {
	var given []*record.Volume

	c.Catalog.EachReadyVolume(func(v *record.Volume) {
		if v.Parameters.Pool == p.Name() && !v.Mutable.IsZero() {
			given = append(given, v)
		}
	})

	for _, v := range given {
		// One unhealthy volume must not affect the others.
		if err := c.applyMutable(ctx, v, p); err != nil {
			c.Log.Error("the mutable parameters of a volume are not in force", "volume", v.ID, "error", err)
		}
	}

	if err := p.RemoveUnusedMutable(ctx, exists); err != nil {
		c.Log.Error("cannot remove mutable parameters of volumes that are gone", "pool", p.Name(), "error", err)
	}
}
