package ephemeral

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// remove ends the volume. Interrupted at any step it is the same call
// again: the record goes last.
func (v *Volumes) remove(ctx context.Context, r *Record) error {
	// The pod must end although its pool has failed.
	held, unavailable := v.config.Access.PoolOf(r.StagedVolume())
	if unavailable != nil && !errors.Is(unavailable, pool.ErrUnavailable) {
		return unavailable
	}

	object := r.object()
	if unavailable == nil {
		if err := checkMounts(held.ObjectPath(object), r.Parameters.Backing); err != nil {
			return err
		}
	}

	there, err := v.isPublished(r)
	if err != nil {
		return err
	}

	if there {
		if err := v.unmount(ctx, r); err != nil {
			return err
		}
	}

	if err := v.config.Access.For(r.StagedVolume()).Unpublish(r.StagedVolume(), r.Publication, nil); err != nil {
		return err
	}

	if unavailable != nil {
		v.config.Log.Warn("the data of an ephemeral volume are removed when its pool is served again",
			"volume", r.VolumeID, "pool", r.Parameters.Pool, "error", unavailable)

		return nil
	}

	// What takes long or can't be removed goes in the background: the pod must end.
	if err := held.Discard(ctx, object); err != nil {
		return err
	}

	// After the record, so that a running probe does not restore it.
	defer v.config.Prober.Observations().Forget(r.VolumeID)

	return v.records.DeleteLazily(r.VolumeID)
}

// checkMounts returns FAILED_PRECONDITION while something is mounted below the
// directory of a volume: what is mounted there is not the volume'v.
func checkMounts(directory string, backing volume.Backing) error {
	if backing != volume.BackingDirectory {
		return nil
	}

	found, err := mount.ListBeneath(directory)
	if err != nil {
		return err
	}

	if len(found) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "%s is mounted at %s, in the volume's directory; unmount it first",
			found[0].Source, found[0].Path)
	}

	return nil
}

func (v *Volumes) unmount(ctx context.Context, r *Record) error {
	target, err := v.config.Dirs.Target(r.Publication.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	return v.config.Access.UnmountAndDetach(ctx, r.StagedVolume(), target)
}

func (v *Volumes) isPublished(r *Record) (bool, error) {
	use := r.StagedVolume()

	return v.config.Access.For(use).IsPublished(use, r.Publication)
}
