package controller

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/coalesce"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// changeRequest is the change that one or several calls of ControllerExpandVolume and
// ControllerModifyVolume request of one volume. It is made completely or not at all.
type changeRequest struct {
	// size is what the volume must have at least, in bytes; 0 asks for none.
	size int64
	// limit is what it may have at most, in bytes; 0 is no limit.
	limit int64
	// mutable holds what shall be different.
	mutable volume.Mutable
}

// changes makes one change of those that come for a volume within a window.
type changes = coalesce.Group[string, changeRequest, changeRequest, *record.Volume]

func (s *Service) newChanges() *changes {
	return coalesce.New(s.config.CoalesceWindow, changeRequest.and, s.runChange)
}

// Drain makes the changes that are waiting for others to join, now, and takes
// no more. It returns ctx's error when they are not made in time.
func (s *Service) Drain(ctx context.Context) error { return s.changes.Drain(ctx) }

// and returns both changes as one. Errors: ABORTED when they contradict each
// other, as if the first were being made already.
func (c changeRequest) and(other changeRequest) (changeRequest, error) {
	if c.size > 0 && other.size > 0 && c.size != other.size {
		return changeRequest{}, rpc.Errorf(codes.Aborted,
			"an expansion to %d bytes is about to be made, not to %d; wait for it, then call again", c.size, other.size)
	}

	if names := c.mutable.ConflictingKeys(other.mutable); len(names) > 0 {
		return changeRequest{}, rpc.Errorf(codes.Aborted,
			"a modification that sets %s to something else is about to be made; wait for it, then call again",
			strings.Join(names, ", "))
	}

	both := changeRequest{size: max(c.size, other.size), limit: min(c.limit, other.limit), mutable: c.mutable.With(other.mutable)}
	if both.limit == 0 {
		both.limit = cmp.Or(c.limit, other.limit)
	}

	return both, nil
}

// call is the operation that makes the change. It has the request that would
// ask for all of it, so that a retry is distinguished from a conflict.
func (c changeRequest) call(id string) operation.Call {
	var methods []string

	if c.size > 0 {
		methods = append(methods, "ControllerExpandVolume")
	}

	if !c.mutable.IsZero() {
		methods = append(methods, "ControllerModifyVolume")
	}

	return rpc.VolumeCall(id, "size", strings.Join(methods, " with "), &csi.CreateVolumeRequest{
		CapacityRange:     &csi.CapacityRange{RequiredBytes: c.size, LimitBytes: c.limit},
		MutableParameters: c.mutable.Parameters(),
	})
}

// requestChange makes the change, merged with others of the same window. A change that is made
// already, as for the retry of a caller that left, does not wait.
func (s *Service) requestChange(ctx context.Context, found *record.Volume, wanted changeRequest) (*record.Volume, error) {
	if found.CapacityBytes >= wanted.size && found.Mutable.With(wanted.mutable).Equal(found.Mutable) {
		return s.runChange(ctx, found.ID, wanted)
	}

	return s.changes.Do(ctx, found.ID, wanted)
}

func (s *Service) runChange(ctx context.Context, id string, wanted changeRequest) (*record.Volume, error) {
	return rpc.Run(ctx, s.config.Log, s.ops, wanted.call(id), func(ctx context.Context) (*record.Volume, error) {
		changed, err := s.applyChange(ctx, id, wanted)
		if err != nil {
			return nil, fmt.Errorf("change volume %s: %w", id, err)
		}

		return changed, nil
	})
}

// checkChange returns why the change cannot be made, before anything is changed.
func (s *Service) checkChange(ctx context.Context, v *record.Volume, wanted changeRequest) error {
	if err := s.checkMutable(v.Parameters, wanted.mutable); err != nil {
		return err
	}

	if wanted.limit > 0 && v.CapacityBytes > wanted.limit {
		return rpc.Errorf(codes.OutOfRange, "it has %d bytes, more than limit_bytes %d; a volume never shrinks",
			v.CapacityBytes, wanted.limit)
	}

	if wanted.size <= v.CapacityBytes {
		return nil
	}

	if !s.has(capability.Online) {
		if err := s.use.CheckNone(v); err != nil {
			return err
		}
	}

	p, err := s.catalog.PoolOf(v)
	if err != nil {
		return err
	}

	if !v.IsRaw() {
		if err := s.use.CheckGrowth(p, v, wanted.size); err != nil {
			return err
		}
	}

	return s.catalog.CheckCapacity(ctx, p, wanted.size-v.CapacityBytes)
}

// applyChange makes the change: it grows the image, then updates the record in one step, and then
// applies the mutable parameters. If that last step fails, the record stays changed, and the CO's
// retry or the next start completes it.
func (s *Service) applyChange(ctx context.Context, id string, wanted changeRequest) (*record.Volume, error) {
	found, err := s.catalog.FindVolume(id)
	if err != nil {
		return nil, err
	}

	p, err := s.catalog.PoolOf(found)
	if err != nil {
		return nil, err
	}

	if err := s.checkChange(ctx, found, wanted); err != nil {
		return nil, err
	}

	changed := found.Clone()
	changed.CapacityBytes = max(found.CapacityBytes, wanted.size)
	changed.SetMutable(found.Mutable.With(wanted.mutable))

	more := changed.CapacityBytes - found.CapacityBytes
	if more > 0 {
		if err := objects.Enlarge(found, changed, p); err != nil {
			return nil, err
		}

		if err := s.config.Point.At(ctx, operation.ImageExpanded, id, found.Name); err != nil {
			return nil, err
		}
	}

	if more > 0 || !changed.Mutable.Equal(found.Mutable) {
		err = s.catalog.ResizeVolume(ctx, id, p, func(v *record.Volume) {
			v.CapacityBytes = changed.CapacityBytes
			if !changed.Mutable.Equal(v.Mutable) {
				v.SetMutable(changed.Mutable)
			}
		})
		if err != nil {
			return nil, err
		}
	}

	if wanted.mutable.IsZero() {
		return changed, nil
	}

	return changed, s.applyMutable(ctx, changed, p)
}
