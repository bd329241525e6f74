// Package changes expands and modifies volumes: those requests for one volume that come within a window
// become one change, which is made completely or not at all.
//
// It contains no request of CSI, but what one asks for.
package changes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/coalesce"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Node is the node service of the same process, as far as changes need it.
type Node interface {
	// CheckSupported returns an error if the node does not support the parameters.
	CheckSupported(wanted volume.Mutable) error
	// ApplyMutable applies the mutable parameters that the pool stores for the volume, if it is in
	// use. The caller is within an operation on the volume.
	ApplyMutable(ctx context.Context, volumeID string) error
}

// Config is what changes are made with.
type Config struct {
	Catalog    *catalog.Catalog
	Node       Node
	Use        *objects.Use
	Operations *operation.Group
	// Window is how long a change waits for others to be made together with it; 0 is not at all.
	Window time.Duration
	// Online: a volume may be expanded while it is attached or in use.
	Online bool
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
	Log   *slog.Logger
}

// Changes makes changes. It is safe for concurrent use.
type Changes struct {
	Config

	requests *coalesce.Group[string, Request, Request, *record.Volume]
}

// New returns what makes changes.
func New(config Config) *Changes {
	c := &Changes{Config: config}
	c.requests = coalesce.New(config.Window, Request.and, c.run)

	return c
}

// Request is the change that one or several calls of ControllerExpandVolume and
// ControllerModifyVolume request of one volume. It is made completely or not at all.
type Request struct {
	// Size is what the volume must have at least, in bytes; 0 asks for none.
	Size int64
	// Limit is what it may have at most, in bytes; 0 is no limit.
	Limit int64
	// Mutable holds what shall be different.
	Mutable volume.Mutable
}

// Drain makes the changes that are waiting for others to join, now, and takes
// no more. It returns ctx's error when they are not made in time.
func (c *Changes) Drain(ctx context.Context) error { return c.requests.Drain(ctx) }

// and returns both changes as one. Errors: ABORTED when they contradict each
// other, as if the first were being made already.
func (r Request) and(other Request) (Request, error) {
	if r.Size > 0 && other.Size > 0 && r.Size != other.Size {
		return Request{}, errdefs.Errorf(errdefs.ErrAborted,
			"an expansion to %d bytes is about to be made, not to %d; wait for it, then call again", r.Size, other.Size)
	}

	if names := r.Mutable.ConflictingKeys(other.Mutable); len(names) > 0 {
		return Request{}, errdefs.Errorf(errdefs.ErrAborted,
			"a modification that sets %s to something else is about to be made; wait for it, then call again",
			strings.Join(names, ", "))
	}

	both := Request{Size: max(r.Size, other.Size), Limit: min(r.Limit, other.Limit), Mutable: r.Mutable.With(other.Mutable)}
	if both.Limit == 0 {
		both.Limit = cmp.Or(r.Limit, other.Limit)
	}

	return both, nil
}

// call is the operation that makes the change. It has the request that would
// ask for all of it, so that a retry is distinguished from a conflict.
func (r Request) call(id string) operation.Call {
	var methods []string

	if r.Size > 0 {
		methods = append(methods, "ControllerExpandVolume")
	}

	if !r.Mutable.IsZero() {
		methods = append(methods, "ControllerModifyVolume")
	}

	return operation.VolumeCall(id, "size", strings.Join(methods, " with "), &csi.CreateVolumeRequest{
		CapacityRange:     &csi.CapacityRange{RequiredBytes: r.Size, LimitBytes: r.Limit},
		MutableParameters: r.Mutable.Parameters(),
	})
}

// Make makes the change, merged with others of the same window. A change that is made
// already, as for the retry of a caller that left, does not wait.
func (c *Changes) Make(ctx context.Context, found *record.Volume, wanted Request) (*record.Volume, error) {
	if found.CapacityBytes >= wanted.Size && found.Mutable.With(wanted.Mutable).Equal(found.Mutable) {
		return c.run(ctx, found.ID, wanted)
	}

	return c.requests.Do(ctx, found.ID, wanted)
}

func (c *Changes) run(ctx context.Context, id string, wanted Request) (*record.Volume, error) {
	return operation.DoLogged(ctx, c.Log, c.Operations, wanted.call(id), func(ctx context.Context) (*record.Volume, error) {
		changed, err := c.apply(ctx, id, wanted)
		if err != nil {
			return nil, fmt.Errorf("change volume %s: %w", id, err)
		}

		return changed, nil
	})
}

// Check returns why the change cannot be made, before anything is changed.
func (c *Changes) Check(ctx context.Context, v *record.Volume, wanted Request) error {
	if err := c.CheckMutable(v.Parameters, wanted.Mutable); err != nil {
		return err
	}

	if wanted.Limit > 0 && v.CapacityBytes > wanted.Limit {
		return errdefs.Errorf(errdefs.ErrOutOfRange, "it has %d bytes, more than limit_bytes %d; a volume never shrinks",
			v.CapacityBytes, wanted.Limit)
	}

	if wanted.Size <= v.CapacityBytes {
		return nil
	}

	if !c.Online {
		if err := c.Use.CheckNone(v); err != nil {
			return err
		}
	}

	p, err := c.Catalog.PoolOf(v)
	if err != nil {
		return err
	}

	if !v.IsRaw() {
		if err := c.Use.CheckGrowth(p, v, wanted.Size); err != nil {
			return err
		}
	}

	return c.Catalog.CheckCapacity(ctx, p, wanted.Size-v.CapacityBytes)
}

// apply makes the change: it grows the image, then updates the record in one step, and then
// applies the mutable parameters. If that last step fails, the record stays changed, and the CO's
// retry or the next start completes it.
func (c *Changes) apply(ctx context.Context, id string, wanted Request) (*record.Volume, error) {
	found, err := c.Catalog.FindVolume(id)
	if err != nil {
		return nil, err
	}

	p, err := c.Catalog.PoolOf(found)
	if err != nil {
		return nil, err
	}

	if err := c.Check(ctx, found, wanted); err != nil {
		return nil, err
	}

	changed := found.Clone()
	changed.CapacityBytes = max(found.CapacityBytes, wanted.Size)
	changed.SetMutable(found.Mutable.With(wanted.Mutable))

	more := changed.CapacityBytes - found.CapacityBytes
	if more > 0 {
		if err := objects.Enlarge(found, changed, p); err != nil {
			return nil, err
		}

		if err := c.Point.At(ctx, operation.ImageExpanded, id, found.Name); err != nil {
			return nil, err
		}
	}

	if more > 0 || !changed.Mutable.Equal(found.Mutable) {
		err = c.Catalog.ResizeVolume(ctx, id, p, func(v *record.Volume) {
			v.CapacityBytes = changed.CapacityBytes
			if !changed.Mutable.Equal(v.Mutable) {
				v.SetMutable(changed.Mutable)
			}
		})
		if err != nil {
			return nil, err
		}
	}

	if wanted.Mutable.IsZero() {
		return changed, nil
	}

	return changed, c.applyMutable(ctx, changed, p)
}

// CheckMutable refuses with INVALID_ARGUMENT what such a volume can't have, or
// what the machine can't do.
func (c *Changes) CheckMutable(parameters volume.Parameters, mutable volume.Mutable) error {
	if mutable.IsZero() {
		return nil
	}

	if name := mutable.NeedsDevice(); name != "" && !parameters.Backing.HasDevice() {
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"mutable_parameters: %s: a directory has no device that it could hold for; use backing=image", name)
	}

	if err := c.Node.CheckSupported(mutable); err != nil {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "mutable_parameters: %w", err)
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
		return fmt.Errorf("recorded, but not in force on node %s: %w", c.Use.NodeID, err)
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
	for v := range c.Catalog.ReadyVolumes("") {
		if v.Parameters.Pool != p.Name() || v.Mutable.IsZero() {
			continue
		}

		// One unhealthy volume must not affect the others.
		if err := c.applyMutable(ctx, v, p); err != nil {
			c.Log.Error("the mutable parameters of a volume are not in force", "volume", v.ID, "error", err)
		}
	}

	if err := p.RemoveUnusedMutable(ctx, exists); err != nil {
		c.Log.Error("cannot remove mutable parameters of volumes that are gone", "pool", p.Name(), "error", err)
	}
}
