package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/ownership"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// Targets mounts volumes at paths of the CO, and unmounts them. It is what the ways of access have in common
// that publish by a bind mount.
type Targets struct {
	dirs     *mount.AllowedDirs
	observer *observe.Observer
	devices  *device.Devices
	pools    staged.Pools
	tuner    *tuning.Tuner
	gate     Gate
	events   Events
	log      *slog.Logger
}

// IsStaged reports whether the volume is mounted at its staging path.
func (t *Targets) IsStaged(v *staged.Volume) (bool, error) {
	return t.observer.IsMountedAt(v, v.StagingPath)
}

// IsInUse is true, too, while an image that is not mounted any more still has its device.
func (t *Targets) IsInUse(v *staged.Volume) (bool, error) {
	if mounted, err := t.IsStaged(v); mounted || err != nil {
		return mounted, err
	}

	return t.devices.IsLeft(v)
}

// bind binds source to the target path. Way is that of the volume.
func (t *Targets) bind(
	ctx context.Context, way Access, v *staged.Volume, publication staged.Publication, source *os.File, target *mount.Target,
) error {
	options := staged.MountOptions(publication.Capability, publication.ReadOnly || v.IsReadOnly())

	if err := t.LimitNew(ctx, way, v, publication); err != nil {
		return err
	}

	tree, err := mount.Bind(source, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	checkThawed := func() error { return checkThawed(way, v) }
	if err := SetGroup(ctx, publication.Capability, options, tree, checkThawed); err != nil {
		return err
	}

	return tree.Attach(target)
}

// publishStaged binds what is mounted at the staging path to the target path.
func (t *Targets) publishStaged(ctx context.Context, way Access, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if _, err := target.MakeDir(TargetDirectoryMode); err != nil {
		return err
	}

	staging, err := t.dirs.Target(v.StagingPath)
	if err != nil {
		return err
	}
	defer staging.Close()

	source, err := staging.Open()
	if err != nil {
		return err
	}
	defer source.Close()

	return t.bind(ctx, way, v, p, source, target)
}

// removeAfter removes a staging path that was made for a staging that ended with err.
func removeAfter(err error, made bool, staging *mount.Target) error {
	if err != nil && made {
		return errors.Join(err, staging.Remove())
	}

	return err
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

	if err := ownership.ChangeGroup(ctx, root, group, checkThawed); err != nil {
		return fmt.Errorf("volume_mount_group: %w", err)
	}

	return nil
}

// UnmountAllLayers unmounts every mount of the volume at the path. Another mount there is
// FAILED_PRECONDITION.
func (t *Targets) UnmountAllLayers(v *staged.Volume, at *mount.Target) error {
	defer t.gate.Close(v.VolumeID)()

	for {
		point, mounted, err := at.Mounted()
		if err != nil || !mounted {
			return err
		}

		isVolume, err := t.observer.IsMountOf(v, point)
		if err == nil && !isVolume && v.Capability.Block {
			isVolume, err = t.devices.Raw().IsStaleNode(v, point)
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
				t.events.MountBusy(v, at.Path())
			}

			return err
		}

		t.events.Unmounted(v, at.Path())
	}
}

// IsPublished reports whether the volume is mounted at the target path, also beneath another
// mount.
func (t *Targets) IsPublished(v *staged.Volume, p staged.Publication) (bool, error) {
	for _, observed := range []func(*staged.Volume, string) (bool, error){t.observer.IsMountedAt, t.observer.IsCoveredAt} {
		if found, err := observed(v, p.TargetPath); found || err != nil {
			return found, err
		}
	}

	return false, nil
}

// Republish returns FAILED_PRECONDITION where a pod would find another mount.
func (t *Targets) Republish(_ context.Context, v *staged.Volume, p staged.Publication) error {
	if mounted, err := t.observer.IsMountedAt(v, p.TargetPath); mounted || err != nil {
		return err
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition, "something else is mounted over it at %s; unmount that first", p.TargetPath)
}

// Unpublish unmounts the volume from the target path and removes what was made for the
// publication: the limits of its pod, and the path if the driver made it. A failure of one
// does not keep the other.
func (t *Targets) Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if target != nil {
		if err := t.UnmountAllLayers(v, target); err != nil {
			return err
		}
	}

	return errors.Join(t.tuner.RemoveLimits(p.TargetPath), t.RemoveTarget(p))
}

// RemoveTarget removes a target path that the driver made. If it has content by now, another
// program uses it, and it stays.
func (t *Targets) RemoveTarget(publication staged.Publication) (err error) {
	defer errdefs.Wrapf(&err, "remove the target path")

	if !publication.Made {
		return nil
	}

	return t.dirs.WithTarget(publication.TargetPath, func(target *mount.Target) error {
		err := target.Remove()
		if errors.Is(err, mount.ErrNotEmpty) || errors.Is(err, mount.ErrWrongType) || errors.Is(err, mount.ErrBusy) {
			t.log.Warn("a target path that was made for a volume is used for something else and stays",
				"target", publication.TargetPath, "reason", err)

			return nil
		}

		return err
	})
}

// goneFrom returns NOT_FOUND for a volume that is not at the path any more.
func goneFrom(v *staged.Volume, path string) error {
	return errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not at %s any more", v.VolumeID, path)
}
