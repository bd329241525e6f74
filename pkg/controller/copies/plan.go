package copies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// plan is how copies are taken so that they are consistent.
type plan struct {
	// frozen are the volumes that are frozen meanwhile.
	frozen []string
	// together is nil unless images that are written to meanwhile are copied as one.
	together *pool.GroupCopy
	// inGroup are the copies of which together consists.
	inGroup []*pendingCopy
}

// planTaking plans how the copies are taken, by the one rule of consistency:
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
// copy.
func (t *taking) planTaking(consistency volume.Consistency, groupID string) error {
	t.plan = &plan{}

	if consistency == volume.ConsistencyNone {
		return nil
	}

	var written []writtenSource

	for _, each := range t.copies {
		user, here, err := t.Node.InUse(each.source.ID)
		if err != nil {
			return err
		}

		if len(t.copies) > 1 || !each.copy.PointInTime() {
			elsewhere := t.Use.WrittenElsewhere(each.source)

			switch {
			case elsewhere != "":
				written = append(written, writtenSource{each, elsewhere})
			case here && !t.Node.CanFreeze(each.source.ID):
				written = append(written, writtenSource{each, "in use at " + user})
			}
		}

		if here {
			t.plan.frozen = append(t.plan.frozen, each.source.ID)
		}
	}

	switch {
	case len(written) == 0:
		return nil
	case len(t.copies) == 1:
		return inconsistentCopyError(written[0].source, written[0].why)
	default:
		return t.plan.copyTogether(groupID, written, t.copies)
	}
}

// writtenSource is a copy whose source may be written to while it is taken, and why.
type writtenSource struct {
	*pendingCopy

	why string
}

// copyTogether has the images of the pool of the written sources copied as one. Errors:
// FAILED_PRECONDITION if that is not possible.
func (p *plan) copyTogether(groupID string, written []writtenSource, copies []*pendingCopy) error {
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

	for _, each := range copies {
		if each.pool == first.pool && each.isInstantImage() {
			p.inGroup, members = append(p.inGroup, each), append(members, each.copy)
		}
	}

	var err error
	if p.together, err = first.pool.NewGroupCopy(groupID, members); errors.Is(err, pool.ErrNoGroupCopy) {
		return inconsistentGroupError(first, err)
	}

	return err
}

func inconsistentGroupError(source writtenSource, cause error) error {
	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"volume %s is %s and can't be frozen, so the group would not be point-in-time (%w); stop using it, leave it out of the group, "+
			"use images of one pool on btrfs, or set %s: %s in the class, if it need not be point-in-time",
		source.source.ID, source.why, cause, volume.KeyConsistency, volume.ConsistencyNone)
}

func inconsistentCopyError(source *record.Volume, why string) error {
	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"volume %s is %s, its pool can't copy it in an instant, and it can't be frozen meanwhile; stop using it, use a pool that can reflink, "+
			"or set %s: %s in the class, if it need not be point-in-time", source.ID, why, volume.KeyConsistency, volume.ConsistencyNone)
}

// take takes all copies, point-in-time as far as their sources are frozen, or copied as one.
func (p *plan) take(ctx context.Context, node Node, copies []*pendingCopy) (err error) {
	if p.together != nil {
		defer func() { err = errors.Join(err, p.together.Close()) }()
	}

	within := func(ctx context.Context) error {
		if err := p.takeTogether(); err != nil {
			return err
		}

		for _, each := range copies {
			if slices.Contains(p.inGroup, each) {
				continue
			}

			each.at = time.Now()

			if err := each.copy.CopyData(ctx); err != nil {
				return err
			}
		}

		return nil
	}

	if len(p.frozen) == 0 {
		err = within(ctx)
	} else {
		err = node.WithFrozen(ctx, p.frozen, within)
	}

	if err != nil || p.together == nil {
		return err
	}

	// Its point in time is fixed, and writers need not wait for the rest.
	return p.together.CopyData(ctx)
}

// takeTogether fixes the point in time of the images that are copied as one.
func (p *plan) takeTogether() error {
	if p.together == nil {
		return nil
	}

	now := time.Now()
	for _, each := range p.inGroup {
		each.at = now
	}

	return p.together.Take()
}
