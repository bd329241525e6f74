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
)

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
	if consistency == volume.ConsistencyNone {
		return nil
	}

	var written []*pendingCopy

	for _, each := range t.copies {
		user, here, err := t.Node.InUse(each.source.ID)
		if err != nil {
			return err
		}

		if len(t.copies) > 1 || !each.copy.PointInTime() {
			each.written = t.Use.WrittenElsewhere(each.source)
			if each.written == "" && here && !t.Node.CanFreeze(each.source.ID) {
				each.written = "in use at " + user
			}
		}

		if each.written != "" {
			written = append(written, each)
		}

		if here {
			t.frozen = append(t.frozen, each.source.ID)
		}
	}

	switch {
	case len(written) == 0:
		return nil
	case len(t.copies) == 1:
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"volume %s is %s, its pool can't copy it in an instant, and it can't be frozen meanwhile; stop using it, use a pool that can reflink, "+
				"or set %s: %s in the class, if it need not be point-in-time",
			written[0].source.ID, written[0].written, volume.KeyConsistency, volume.ConsistencyNone)
	default:
		return t.copyTogether(groupID, written)
	}
}

// copyTogether has the images of the pool of the written sources copied as one. Errors:
// FAILED_PRECONDITION if that is not possible.
func (t *taking) copyTogether(groupID string, written []*pendingCopy) (err error) {
	first := written[0]

	for _, each := range written {
		_, instant := each.instantImage()

		switch {
		case !instant:
			return inconsistentGroupError(each, fmt.Errorf("%w: it is no image, or can't be copied in an instant", pool.ErrNoGroupCopy))
		case each.pool != first.pool:
			return inconsistentGroupError(each, fmt.Errorf("%w: it is in pool %q, and volume %s in pool %q",
				pool.ErrNoGroupCopy, each.pool.Name(), first.source.ID, first.pool.Name()))
		}
	}

	var members []*pool.ImageCopy

	for _, each := range t.copies {
		if image, instant := each.instantImage(); instant && each.pool == first.pool {
			t.inGroup, members = append(t.inGroup, each), append(members, image)
		}
	}

	if t.together, err = first.pool.NewGroupCopy(groupID, members); errors.Is(err, pool.ErrNoGroupCopy) {
		return inconsistentGroupError(first, err)
	}

	return err
}

func inconsistentGroupError(of *pendingCopy, cause error) error {
	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"volume %s is %s and can't be frozen, so the group would not be point-in-time (%w); stop using it, leave it out of the group, "+
			"use images of one pool on btrfs, or set %s: %s in the class, if it need not be point-in-time",
		of.source.ID, of.written, cause, volume.KeyConsistency, volume.ConsistencyNone)
}

// take takes all copies, point-in-time as far as their sources are frozen, or copied as one.
func (t *taking) take(ctx context.Context) (err error) {
	if t.together != nil {
		defer func() { err = errors.Join(err, t.together.Close()) }()
	}

	if len(t.frozen) == 0 {
		err = t.takeEach(ctx)
	} else {
		err = t.Node.WithFrozen(ctx, t.frozen, t.takeEach)
	}

	if err != nil || t.together == nil {
		return err
	}

	// Its point in time is fixed, and writers need not wait for the rest.
	return t.together.CopyData(ctx)
}

// takeEach fixes the point in time of the images that are copied as one, and copies the others.
func (t *taking) takeEach(ctx context.Context) error {
	if t.together != nil {
		now := time.Now()
		for _, each := range t.inGroup {
			each.at = now
		}

		if err := t.together.Take(); err != nil {
			return err
		}
	}

	for _, each := range t.copies {
		if slices.Contains(t.inGroup, each) {
			continue
		}

		each.at = time.Now()

		if err := each.copy.CopyData(ctx); err != nil {
			return err
		}
	}

	return nil
}
