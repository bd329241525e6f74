package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Publish creates and mounts the volume unless it is published already. The volume exists until its
// unpublication. Publish first removes what an earlier attempt or a reboot has left of it. The caller is in an operation
// on the volume.
func (v *Volumes) Publish(ctx context.Context, wanted *staged.Inline) error {
	if existing, known := v.config.Records.Get(wanted.VolumeID); known {
		there, err := v.isPublished(existing)
		if err != nil {
			return err
		}

		if there {
			return v.checkSame(ctx, existing, wanted)
		}

		if err := v.remove(ctx, existing); err != nil {
			return err
		}

		if _, left := v.config.Records.Get(wanted.VolumeID); left {
			return errdefs.Errorf(errdefs.ErrUnavailable, "what an earlier attempt has left of it is removed when pool %q is served again",
				existing.Parameters.Pool)
		}
	}

	if err := v.checkLargest(wanted); err != nil {
		return err
	}

	target, err := v.config.Dirs.Target(wanted.Publication.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer target.Close()

	stored, err := v.config.Pools.Of(wanted.StagedVolume())
	if err != nil {
		return err
	}

	if wanted, err = v.record(ctx, wanted, stored, target); err != nil {
		return err
	}

	if err := v.create(ctx, wanted, stored, target); err != nil {
		return errors.Join(err, v.remove(ctx, wanted))
	}

	return nil
}

// checkSame returns nil if the existing volume is published as wanted.
func (v *Volumes) checkSame(ctx context.Context, existing, wanted *staged.Inline) error {
	if err := checkCompatible(existing, wanted); err != nil {
		return err
	}

	asStaged := existing.StagedVolume()

	return v.config.Ways.For(asStaged).Republish(ctx, asStaged, existing.Publication)
}

// checkCompatible returns nil if the records differ at most in their content's id.
func checkCompatible(existing, wanted *staged.Inline) error {
	if existing.Publication.TargetPath != wanted.Publication.TargetPath {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"it is published at %s, and an ephemeral volume has one target; unpublish it there first",
			existing.Publication.TargetPath)
	}

	if existing.SizeBytes != wanted.SizeBytes || existing.Parameters != wanted.Parameters {
		return errdefs.Errorf(errdefs.ErrAlreadyExists, "it is published there with another volume_context; unpublish it first")
	}

	if differences := existing.StagedVolume().Differences(existing.Publication, wanted.Publication); differences != "" {
		return errdefs.Errorf(errdefs.ErrAlreadyExists, "it is published there with another capability or readonly flag: %s; unpublish it first",
			differences)
	}

	return nil
}

// record records the volume before it is created, if the pool has free space.
func (v *Volumes) record(
	ctx context.Context, wanted *staged.Inline, stored *pool.Pool, target *mount.Target,
) (*staged.Inline, error) {
	point, mounted, err := target.Mounted()
	if err != nil {
		return nil, err
	}

	if mounted {
		return nil, errdefs.Errorf(errdefs.ErrFailedPrecondition, "%s is mounted there; unmount it first", point.Source)
	}

	occupied, err := target.Exists()
	if err != nil {
		return nil, err
	}

	// A copy: a retry that joins finds the request's own record as it was.
	recorded := *wanted
	recorded.Publication.Made = !occupied
	recorded.ContentID = staged.ContentID(volume.NewID())

	return &recorded, v.config.Admission.Admit(ctx, func(check pool.Check) error {
		return v.config.Records.PutIf(ctx, &recorded, func() error { return check(stored, recorded.SizeBytes, false) })
	})
}

// create creates the pool object, and mounts it at the target only.
func (v *Volumes) create(ctx context.Context, r *staged.Inline, stored *pool.Pool, target *mount.Target) error {
	options := staged.MountOptions(r.Publication.Capability, r.Publication.ReadOnly)

	if err := v.store(ctx, r, stored); err != nil {
		return err
	}

	tree, err := v.config.Ways.Tree(ctx, r.StagedVolume(), options)
	if err != nil {
		return err
	}
	defer tree.Close()

	// A filesystem that was just made is not frozen.
	if err := access.SetGroup(ctx, r.Publication.Capability, options, tree, func() error { return nil }); err != nil {
		return err
	}

	if _, err := target.MakeDir(access.TargetDirectoryMode); err != nil {
		return err
	}

	return tree.Attach(target)
}

// store creates the pool object. It formats an image in place, unlike staging, which keeps the
// old image until the new one is complete: if this is interrupted, the image is deleted and
// never read again.
func (v *Volumes) store(ctx context.Context, r *staged.Inline, stored *pool.Pool) error {
	object, thick := r.Object(), r.Parameters.Provisioning == volume.Thick

	backing := stored.Backing(object.Backing)
	if err := backing.Create(object.ID, r.SizeBytes, thick); err != nil || !object.Backing.HasFilesystem() {
		return err
	}

	made, err := filesystem.ByName(r.Parameters.FSType, v.config.Run)
	if err != nil {
		return err
	}

	if err := v.config.Ways.Filesystems.Make(ctx, r.StagedVolume(), stored, made, stored.ObjectPath(object)); err != nil {
		return fmt.Errorf("format as %s: %w", made.Name(), err)
	}

	// mkfs may have zeroed blocks of a thick image by punching holes.
	return backing.Create(object.ID, r.SizeBytes, thick)
}
