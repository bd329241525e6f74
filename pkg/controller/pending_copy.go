package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// pendingCopy is one copy that is about to be taken. The operation of its source is
// held meanwhile, so that the source cannot be staged or attached.
type pendingCopy struct {
	// source is nil for the restore of a snapshot.
	source *record.Volume
	target pool.Object
	// pool is that of the target.
	pool *pool.Pool
	copy *pool.Copy
	task *progress.Task
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
	options.Progress, options.SourceBytes = task.Set, source.CapacityBytes

	made, err := p.NewCopy(from, source.Object(), target, options)
	if err != nil {
		task.End(err)

		return nil, err
	}

	return &pendingCopy{source: source, target: target, pool: p, copy: made, task: task}, nil
}

// isInstantImage reports whether the copy can be one of a pool.GroupCopy, if its filesystem takes any.
func (c *pendingCopy) isInstantImage() bool {
	return c.target.Backing == volume.BackingImage && c.copy.PointInTime()
}

// abort gives back what is not committed.
func (c *pendingCopy) abort(cause error) error {
	c.task.End(cause)

	return c.copy.Abort()
}

// consistentTaking is how copies are taken so that they are consistent.
type consistentTaking struct {
	// frozen are the volumes that are frozen meanwhile.
	frozen []string
	// together is nil unless images that are written to meanwhile are copied as one.
	together *pool.GroupCopy
	// inGroup are the copies of which together consists.
	inGroup []*pendingCopy
}

// planTaking returns how copies are taken, by the one rule of consistency:
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
//     used for writing must therefore be frozen on this node, until all are copied, or be an image of
//     a pool that copies several images at one point in time.
//
// With volume.ConsistencyNone nothing is frozen, and nothing refused. groupID is empty for a single
// copy. The caller calls takeCopies with the result.
func (s *Service) planTaking(consistency volume.Consistency, groupID string, cuts []*pendingCopy) (*consistentTaking, error) {
	plan := &consistentTaking{}

	if consistency == volume.ConsistencyNone {
		return plan, nil
	}

	var written []writtenSource

	for _, each := range cuts {
		user, here, err := s.config.LocalNode.InUse(each.source.ID)
		if err != nil {
			return nil, err
		}

		if len(cuts) > 1 || !each.copy.PointInTime() {
			elsewhere := s.writtenElsewhere(each.source)

			switch {
			case elsewhere != "":
				written = append(written, writtenSource{each, elsewhere})
			case here && !s.config.LocalNode.CanFreeze(each.source.ID):
				written = append(written, writtenSource{each, "in use at " + user})
			}
		}

		if here {
			plan.frozen = append(plan.frozen, each.source.ID)
		}
	}

	switch {
	case len(written) == 0:
		return plan, nil
	case len(cuts) == 1:
		return nil, inconsistentCopyError(written[0].source, written[0].why)
	default:
		return plan, s.planTogether(plan, groupID, written, cuts)
	}
}

// writtenSource is a copy whose source may be written to while it is taken, and why.
type writtenSource struct {
	*pendingCopy

	why string
}

// planTogether has the images of the pool of the written sources copied as one. Errors:
// FAILED_PRECONDITION if that is not possible.
func (s *Service) planTogether(plan *consistentTaking, groupID string, written []writtenSource, cuts []*pendingCopy) error {
	first := written[0]

	for _, each := range written {
		switch {
		case !each.isInstantImage():
			return inconsistentGroupError(each, fmt.Errorf("%w: it is no image, or can't be copied in an instant", pool.ErrNoGroupCopy))
		case each.pool != first.pool:
			return inconsistentGroupError(each, fmt.Errorf("%w: it is in pool %q, and volume %s in pool %q",
				pool.ErrNoGroupCopy, each.pool.Name(), first.source.ID, first.pool.Name()))
		}
	}

	var members []*pool.Copy

	for _, each := range cuts {
		if each.pool == first.pool && each.isInstantImage() {
			plan.inGroup, members = append(plan.inGroup, each), append(members, each.copy)
		}
	}

	var err error
	if plan.together, err = first.pool.NewGroupCopy(groupID, members); errors.Is(err, pool.ErrNoGroupCopy) {
		return inconsistentGroupError(first, err)
	}

	return err
}

func inconsistentGroupError(source writtenSource, cause error) error {
	return rpc.Errorf(codes.FailedPrecondition,
		"volume %s is %s and can't be frozen, so the group would not be point-in-time (%w); stop using it, leave it out of the group, "+
			"use images of one pool on btrfs, or set %s: %s in the class, if it need not be point-in-time",
		source.source.ID, source.why, cause, volume.KeyConsistency, volume.ConsistencyNone)
}

func inconsistentCopyError(source *record.Volume, why string) error {
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

// takeCopies takes all copies, point-in-time as far as their sources are frozen, or copied as one.
func (s *Service) takeCopies(ctx context.Context, plan *consistentTaking, cuts []*pendingCopy) (err error) {
	if plan.together != nil {
		defer func() { err = errors.Join(err, plan.together.Close()) }()
	}

	within := func(ctx context.Context) error {
		if err := plan.takeTogether(); err != nil {
			return err
		}

		for _, each := range cuts {
			if slices.Contains(plan.inGroup, each) {
				continue
			}

			each.at = time.Now()

			if err := each.copy.CopyData(ctx); err != nil {
				return err
			}
		}

		return nil
	}

	if len(plan.frozen) == 0 {
		err = within(ctx)
	} else {
		err = s.config.LocalNode.WithFrozen(ctx, plan.frozen, within)
	}

	if err != nil || plan.together == nil {
		return err
	}

	// Its point in time is fixed, and writers need not wait for the rest.
	return plan.together.CopyData(ctx)
}

// takeTogether fixes the point in time of the images that are copied as one.
func (p *consistentTaking) takeTogether() error {
	if p.together == nil {
		return nil
	}

	now := time.Now()
	for _, each := range p.inGroup {
		each.at = now
	}

	return p.together.Take()
}
