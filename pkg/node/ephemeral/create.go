package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// ensure makes the volume unless it is there. What an earlier attempt
// or a reboot has left of it is useless and removed first.
func (v *Volumes) ensure(ctx context.Context, wanted *Record) error {
	if existing, known := v.records.Get(wanted.VolumeID); known {
		there, err := v.isPublished(existing)
		if err != nil {
			return err
		}

		if there {
			return v.checkSame(existing, wanted)
		}

		if err := v.remove(ctx, existing); err != nil {
			return err
		}
	}

	place, err := v.config.Dirs.Target(wanted.Publication.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer place.Close()

	if wanted, err = v.record(ctx, wanted, place); err != nil {
		return err
	}

	v.config.Prober.Observations().SetContentID(wanted.ContentID, wanted.VolumeID)

	if err := v.create(ctx, wanted, place); err != nil {
		return errors.Join(err, v.remove(ctx, wanted))
	}

	return nil
}

// checkSame returns OK when the volume is what is wanted.
func (v *Volumes) checkSame(existing, wanted *Record) error {
	if existing.Publication.TargetPath != wanted.Publication.TargetPath {
		return rpc.Errorf(codes.FailedPrecondition, "it is published at %s, and an ephemeral volume has one target; unpublish it there first",
			existing.Publication.TargetPath)
	}

	if existing.SizeBytes != wanted.SizeBytes || existing.Parameters != wanted.Parameters {
		return rpc.Errorf(codes.AlreadyExists, "it is published there with another volume_context; unpublish it first")
	}

	if !existing.Publication.Same(wanted.Publication) {
		return rpc.Errorf(codes.AlreadyExists, "it is published there with another capability or readonly flag; unpublish it first")
	}

	mounted, err := v.config.Access.Observer().IsMountedAt(existing.StagedVolume(), existing.Publication.TargetPath)
	if err != nil {
		return err
	}

	if !mounted {
		return rpc.Errorf(codes.FailedPrecondition, "something else is mounted over it; unmount that first")
	}

	return nil
}

// record records the volume before it is created, if the pool has free space.
func (v *Volumes) record(ctx context.Context, wanted *Record, place *mount.Target) (*Record, error) {
	point, mounted, err := place.Mounted()
	if err != nil {
		return nil, err
	}

	if mounted {
		return nil, rpc.Errorf(codes.FailedPrecondition, "%s is mounted there; unmount it first", point.Source)
	}

	_, occupied, err := place.Stat()
	if err != nil {
		return nil, err
	}

	// A copy: a retry that joins finds the request's own record as it was.
	recorded := *wanted
	recorded.Publication.Made = !occupied

	if recorded.ContentID, err = volume.NewID(); err != nil {
		return nil, err
	}

	held, err := v.config.Access.PoolOf(recorded.StagedVolume())
	if err != nil {
		return nil, err
	}

	return &recorded, v.config.Admission.Admit(ctx, func(check pool.Check) error {
		return v.records.PutIf(ctx, &recorded, func() error { return check(held, recorded.SizeBytes, false) })
	})
}

// create creates the pool object, and mounts it at the target only.
func (v *Volumes) create(ctx context.Context, r *Record, place *mount.Target) error {
	options, err := access.MountOptions(r.Publication.Capability, r.Publication.ReadOnly)
	if err != nil {
		return err
	}

	makeTree := v.imageTree
	if !r.StagedVolume().IsImage() {
		makeTree = v.directoryTree
	}

	tree, err := makeTree(ctx, r, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	if err := access.SetGroup(ctx, r.Publication.Capability, options, tree); err != nil {
		return err
	}

	if _, err := place.MakeDir(access.TargetDirectoryMode); err != nil {
		return err
	}

	return tree.Attach(place)
}

// imageTree formats the image in place: if that is interrupted, the image is
// deleted and never read again.
func (v *Volumes) imageTree(ctx context.Context, r *Record, options mount.Options) (*mount.Detached, error) {
	made, err := filesystem.ByName(r.Parameters.FSType, v.config.Run)
	if err != nil {
		return nil, err
	}

	held, err := v.config.Access.PoolOf(r.StagedVolume())
	if err != nil {
		return nil, err
	}

	thick := r.Parameters.Provisioning == volume.Thick
	if err := held.EnsureImage(r.ContentID, r.SizeBytes, thick); err != nil {
		return nil, err
	}

	err = made.Make(ctx, held.VolumePath(r.ContentID, volume.BackingImage), filesystem.MakeOptions{
		BlockSize: r.Parameters.BlockSize, NoLazyInit: thick, Options: strings.Fields(r.Parameters.MkfsOptions),
	})
	if err != nil {
		return nil, fmt.Errorf("format as %s: %w", made.Name(), err)
	}

	// mkfs may have zeroed blocks of a thick image by punching holes.
	if err := held.EnsureImage(r.ContentID, r.SizeBytes, thick); err != nil {
		return nil, err
	}

	image, err := held.OpenImage(r.ContentID, access.OpenFlag(r.Publication.ReadOnly))
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := v.config.Access.AttachImage(ctx, r.StagedVolume(), image, r.Publication.ReadOnly, true)
	if err != nil {
		return nil, err
	}
	defer device.Close()

	return mount.Mount(device.Path, made.Name(), options)
}

func (v *Volumes) directoryTree(_ context.Context, r *Record, options mount.Options) (*mount.Detached, error) {
	held, err := v.config.Access.PoolOf(r.StagedVolume())
	if err != nil {
		return nil, err
	}

	if err := held.EnsureDirectory(r.ContentID); err != nil {
		return nil, err
	}

	return v.config.Access.DirectoryTree(r.StagedVolume(), options)
}
