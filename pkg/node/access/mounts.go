package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/ownership"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// MountOptions returns the options of a volume's mounts. A mounted volume has no device
// nodes that work unless its mount flags have "dev"; a raw-block volume's mount is one.
func MountOptions(capability volume.Capability, readOnly bool) (mount.Options, error) {
	options, err := mount.ParseFlags(capability.MountFlags)
	if err != nil {
		return mount.Options{}, err
	}

	if !capability.Block {
		options = options.WithoutDevices()
	}

	if readOnly {
		options = options.WithReadOnly()
	}

	return options, nil
}

// SetGroup gives the files of the tree to the group of the capability. The tree is still
// detached and has no mounts beneath it: it contains nothing but the volume. Before the first change it
// calls checkThawed: a frozen filesystem blocks it without end.
func SetGroup(
	ctx context.Context, capability volume.Capability, options mount.Options, tree *mount.Detached, checkThawed func() error,
) error {
	if capability.MountGroup == "" || options.ReadOnly() {
		return nil
	}

	group, err := capability.MountGroupID()
	if err != nil {
		return err
	}

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}
	defer root.Close()

	done, err := ownership.HasGroup(root, group)
	if err != nil || done {
		return err
	}

	if err := checkThawed(); err != nil {
		return err
	}

	if err := ownership.ChangeGroup(ctx, root, group); err != nil {
		return fmt.Errorf("volume_mount_group: %w", err)
	}

	return nil
}

// bind binds source to the target path.
func (p *Provider) bind(
	ctx context.Context, v *staged.Volume, publication staged.Publication, source *os.File, target *mount.Target,
) error {
	options, err := MountOptions(publication.Capability, publication.ReadOnly || v.IsReadOnly())
	if err != nil {
		return err
	}

	if err := p.limitNew(ctx, v, publication); err != nil {
		return err
	}

	tree, err := mount.Bind(source, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	checkThawed := func() error { return p.checkThawed(v) }
	if err := SetGroup(ctx, publication.Capability, options, tree, checkThawed); err != nil {
		return err
	}

	return tree.Attach(target)
}

// Publish binds the filesystem that is mounted at the staging path.
func (m mounted) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if _, err := target.MakeDir(TargetDirectoryMode); err != nil {
		return err
	}

	staging, err := m.config.Dirs.Target(v.StagingPath)
	if err != nil {
		return err
	}
	defer staging.Close()

	source, err := staging.Open()
	if err != nil {
		return err
	}
	defer source.Close()

	return m.bind(ctx, v, p, source, target)
}

// stageMount mounts the volume at the staging path with mountVolume, unless it is mounted
// there already: by a driver that has lost its records.
func (p *Provider) stageMount(
	v *staged.Volume, staging *mount.Target, mountVolume func(options mount.Options) error,
) error {
	if mounted, err := p.observe.IsMountedAt(v, v.StagingPath); mounted || err != nil {
		return cmp.Or(err, p.RecordMounted(v))
	}

	if err := p.UnmountAllLayers(v, staging); err != nil {
		return err
	}

	made, err := staging.MakeDir(stagingMode)
	if err != nil {
		return err
	}

	options, err := MountOptions(v.Capability, v.IsReadOnly())
	if err == nil {
		err = mountVolume(options)
	}

	if err != nil && made {
		err = errors.Join(err, staging.Remove())
	}

	return err
}

// Unstage unmounts the volume from the staging path, and waits until the kernel has
// detached the device of its image with the last mount, so that its number is free again.
func (m mounted) Unstage(ctx context.Context, v *staged.Volume) error {
	staging, err := m.config.Dirs.Target(v.StagingPath)
	if err == nil {
		defer staging.Close()

		err = m.UnmountAndDetach(ctx, v, staging)
	}

	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	// Another program, or an earlier call, may have unmounted it.
	return m.DetachLeft(ctx, v)
}

// UnmountAndDetach thaws and unmounts the volume, and waits until the kernel has detached the device of
// its image with the last mount.
func (p *Provider) UnmountAndDetach(ctx context.Context, v *staged.Volume, at *mount.Target) error {
	point, mounted, err := at.Mounted()
	if err != nil {
		return err
	}

	device, isImage, err := p.observe.DeviceAt(v, point)
	if err != nil {
		return err
	}

	if mounted && CanFreeze(v) {
		if err := p.endUse(ctx, v, at); err != nil {
			return err
		}
	}

	if err := p.UnmountAllLayers(v, at); err != nil || !mounted || !isImage {
		return err
	}

	return p.awaitDetach(ctx, v, device)
}

// UnmountAllLayers unmounts every mount of the volume at the path. Another mount there is
// FAILED_PRECONDITION.
func (p *Provider) UnmountAllLayers(v *staged.Volume, at *mount.Target) error {
	defer p.config.Prober.CloseGate(v.VolumeID)()

	for {
		point, mounted, err := at.Mounted()
		if err != nil || !mounted {
			return err
		}

		isVolume, err := p.observe.IsMountOf(v, point)
		if err == nil && !isVolume && v.Capability.Block {
			isVolume, err = p.isStaleNode(v, point)
		}

		if err != nil {
			return err
		}

		if !isVolume {
			return errdefs.Errorf(errdefs.ErrFailedPrecondition, "%s: %s is mounted there, which is not volume %s; unmount it first",
				at.Path(), point.Source, v.VolumeID)
		}

		if err := at.Unmount(); err != nil {
			if errors.Is(err, mount.ErrBusy) {
				p.config.Prober.MountBusy(v, at.Path())
			}

			return err
		}

		p.config.Prober.Unmounted(v, at.Path())
	}
}

// IsPublished reports whether the volume is mounted at the target path, also beneath another
// mount.
func (b bound) IsPublished(v *staged.Volume, p staged.Publication) (bool, error) {
	for _, observed := range []func(*staged.Volume, string) (bool, error){b.observe.IsMountedAt, b.observe.IsCoveredAt} {
		if found, err := observed(v, p.TargetPath); found || err != nil {
			return found, err
		}
	}

	return false, nil
}

// Republish returns FAILED_PRECONDITION where a pod would find another mount.
func (b bound) Republish(_ context.Context, v *staged.Volume, p staged.Publication) error {
	if mounted, err := b.observe.IsMountedAt(v, p.TargetPath); mounted || err != nil {
		return err
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition, "something else is mounted over it at %s; unmount that first", p.TargetPath)
}

// Unpublish unmounts the volume from the target path and removes what was made for the
// publication: the limits of its pod, and the path if the driver made it. A failure of one
// does not keep the other.
func (b bound) Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if target != nil {
		if err := b.UnmountAllLayers(v, target); err != nil {
			return err
		}
	}

	return errors.Join(b.config.Tuner.RemoveLimits(p.TargetPath), b.removeTarget(p))
}

// removeTarget removes a target path that the driver made. If it has content by now, another
// program uses it, and it stays.
func (p *Provider) removeTarget(publication staged.Publication) error {
	if !publication.Made {
		return nil
	}

	target, err := p.config.Dirs.Target(publication.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("remove target: %w", err)
	}
	defer target.Close()

	err = target.Remove()
	if errors.Is(err, mount.ErrNotEmpty) || errors.Is(err, mount.ErrWrongType) || errors.Is(err, mount.ErrBusy) {
		p.config.Log.Warn("a target path that was made for a volume is used for something else and stays",
			"target", publication.TargetPath, "reason", err)

		return nil
	}

	return err
}

// mountOf reports whether the volume is mounted at the path, and returns the mount.
func (p *Provider) mountOf(v *staged.Volume, path string) (mount.Point, bool, error) {
	point, mounted, err := p.observe.MountAt(path)
	if err != nil || !mounted {
		return mount.Point{}, false, err
	}

	isVolume, err := p.observe.IsMountOf(v, point)

	return point, isVolume, err
}

// goneFrom returns NOT_FOUND for a volume that is not at the path any more.
func goneFrom(v *staged.Volume, path string) error {
	return errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not at %s any more", v.VolumeID, path)
}

// unknown returns UNAVAILABLE for an observation that failed, nil for nil.
func unknown(err error, v *staged.Volume, what string) error { return observe.Unknown(err, v, what) }
