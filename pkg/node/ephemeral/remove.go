package ephemeral

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// remove unmounts the volume and removes its data. A call that was interrupted at any step can be
// repeated: the record is deleted last.
func (v *Volumes) remove(ctx context.Context, r *staged.Inline) error {
	// The pod must end although its pool has failed.
	stored, unavailable := v.config.Pools.Of(r.StagedVolume())
	if unavailable != nil && !errors.Is(unavailable, pool.ErrUnavailable) {
		return unavailable
	}

	object := r.Object()
	if unavailable == nil {
		if err := checkMounts(stored, object); err != nil {
			return err
		}
	}

	there, err := v.isPublished(r)
	if err != nil {
		return err
	}

	if there {
		err = v.unmount(ctx, r)
	} else {
		err = v.config.Devices.DetachLeft(ctx, r.StagedVolume())
	}

	if err != nil {
		return err
	}

	if err := v.config.Ways.For(r.StagedVolume()).Unpublish(r.StagedVolume(), r.Publication, nil); err != nil {
		return err
	}

	if unavailable != nil {
		v.config.Log.Warn("the data of an ephemeral volume are removed when its pool is served again",
			"volume", r.VolumeID, "pool", r.Parameters.Pool, "error", unavailable)

		return nil
	}

	// The pod must end: a removal that takes long or fails continues in the background.
	if err := stored.Discard(ctx, object); err != nil {
		return err
	}

	// After the record, so that a running probe does not restore it.
	defer v.config.Prober.Observations().Forget(r.VolumeID)

	return v.config.Records.DeleteLazily(r.VolumeID)
}

// checkMounts returns FAILED_PRECONDITION while something is mounted below the
// directory of a volume: what is mounted there is not the volume's.
func checkMounts(stored *pool.Pool, object pool.Object) error {
	found, err := stored.Backing(object.Backing).MountsIn(object)
	if err != nil {
		return err
	}

	if len(found) > 0 {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "%s is mounted at %s, in the volume's directory; unmount it first",
			found[0].Source, found[0].Path)
	}

	return nil
}

func (v *Volumes) unmount(ctx context.Context, r *staged.Inline) error {
	target, err := v.config.Dirs.Target(r.Publication.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	return v.config.Ways.UnmountAndDetach(ctx, r.StagedVolume(), target)
}

func (v *Volumes) isPublished(r *staged.Inline) (bool, error) {
	asStaged := r.StagedVolume()

	return v.config.Ways.For(asStaged).IsPublished(asStaged, r.Publication)
}
