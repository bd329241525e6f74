package controller

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// pendingCopy is one copy that is about to be taken. The operation of its source is
// held meanwhile, so that the source cannot be staged or attached.
type pendingCopy struct {
	// source is nil for the restore of a snapshot.
	source *record.Volume
	target pool.Object
	copy   *pool.Copy
	task   *progress.Task
	// at is when the copy was taken.
	at time.Time
}

// prepareCopy does what takes time and does not need the source to be still. It returns what is
// needed to give it all back, too.
func (s *Service) prepareCopy(
	source *record.Volume, p *pool.Pool, target pool.Object, kind string, options pool.CopyOptions,
) (*pendingCopy, error) {
	from, err := s.poolOf(source)
	if err != nil {
		return nil, err
	}

	// The image of a volume that was never attached may not be durable.
	if source.Pristine {
		if err := s.allocateDurably(source); err != nil {
			return nil, err
		}
	}

	task := s.config.Progress.Start(kind, target.ID, source.CapacityBytes)
	options.Progress = task.Set

	made, err := p.NewCopy(from, source.Object(), target, options)
	if err != nil {
		task.End(err)

		return nil, err
	}

	return &pendingCopy{source: source, target: target, copy: made, task: task}, nil
}

// abort gives back what is not committed.
func (c *pendingCopy) abort(cause error) error {
	c.task.End(cause)

	return c.copy.Abort()
}

// volumesToFreeze returns which of the sources must be frozen, by the one rule of
// consistency:
//
//   - An instant copy is point-in-time in any case. What is mounted on
//     this node is frozen for it, so that its filesystem is consistent too; what
//     is used on another node is as after a power failure.
//
//   - Any other copy needs its source to be still: not in use, or frozen on
//     this node for as long as the copy takes. Else it is refused with
//     FAILED_PRECONDITION.
//
//   - The members of a group are point-in-time together, in the order of the writes to them. What is
//     used for writing must therefore be frozen on this node, until all are copied.
//
// With volume.ConsistencyNone nothing is frozen, and nothing refused.
func (s *Service) volumesToFreeze(consistency volume.Consistency, cuts []*pendingCopy) ([]string, error) {
	var frozen []string

	if consistency == volume.ConsistencyNone {
		return nil, nil
	}

	for _, each := range cuts {
		user, here, err := s.config.LocalNode.InUse(each.source.ID)
		if err != nil {
			return nil, err
		}

		grouped := len(cuts) > 1

		if grouped || !each.copy.PointInTime() {
			elsewhere := s.writtenElsewhere(each.source)

			switch {
			case elsewhere != "":
				return nil, inconsistentCopyError(each.source, elsewhere, grouped)
			case here && !s.config.LocalNode.CanFreeze(each.source.ID):
				return nil, inconsistentCopyError(each.source, "in use at "+user, grouped)
			}
		}

		if here {
			frozen = append(frozen, each.source.ID)
		}
	}

	return frozen, nil
}

func inconsistentCopyError(source *record.Volume, why string, grouped bool) error {
	if grouped {
		return rpc.Errorf(codes.FailedPrecondition,
			"volume %s is %s and can't be frozen, so the group would not be point-in-time; stop using it, leave it out of the group, "+
				"or set %s: %s in the class, if it need not be point-in-time", source.ID, why, volume.KeyConsistency, volume.ConsistencyNone)
	}

	return rpc.Errorf(codes.FailedPrecondition,
		"volume %s is %s, its pool can't copy it in an instant, and it can't be frozen meanwhile; stop using it, use a pool that can reflink, "+
			"or set %s: %s in the class, if it need not be point-in-time", source.ID, why, volume.KeyConsistency, volume.ConsistencyNone)
}

// writtenElsewhere returns in which way the volume may be written outside of this
// process, or "".
func (s *Service) writtenElsewhere(v *record.Volume) string {
	if !s.has(capability.PublishUnpublishVolume) {
		if s.config.LocalNode.Serves(s.config.NodeID) && !s.config.Shared {
			return ""
		}

		return "maybe in use, as the driver gets no ControllerPublishVolume calls"
	}

	for _, attachment := range v.Attachments {
		reads := attachment.ReadOnly || attachment.Capability.ReaderOnly()
		own := s.config.LocalNode.Serves(attachment.NodeID)

		if !reads && !own {
			return "attached to node " + attachment.NodeID
		}
	}

	return ""
}

// takeCopies takes all copies, point-in-time as far as their sources are frozen.
func (s *Service) takeCopies(ctx context.Context, frozen []string, cuts []*pendingCopy) error {
	within := func(ctx context.Context) error {
		for _, each := range cuts {
			each.at = time.Now()

			if err := each.copy.CopyData(ctx); err != nil {
				return err
			}
		}

		return nil
	}

	if len(frozen) == 0 {
		return within(ctx)
	}

	return s.config.LocalNode.WithFrozen(ctx, frozen, within)
}
