package access

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// checkAndGrow checks a filesystem, repairs what is safe to repair, returns an error for other
// damage, and grows the filesystem to the size of its device. A copy gets a UUID of its own:
// the volume's id.
func (f *Filesystems) checkAndGrow(ctx context.Context, v *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	if err := finishUUIDChange(ctx, v, used, device); err != nil {
		return err
	}

	began := time.Now()

	dirty, err := f.checker.CheckAtStaging(ctx, v, used, device.Path, time.Time{})
	if err != nil {
		return err
	}

	if dirty {
		if err := replayLog(v, used, device); err != nil {
			return err
		}

		if _, err := f.checker.CheckAtStaging(ctx, v, used, device.Path, began); err != nil {
			return err
		}
	}

	if v.Copy {
		if err := used.SetUUID(ctx, device.Path, v.VolumeID); err != nil {
			return err
		}
	}

	return Grow(ctx, used, device)
}

// Prepare checks the filesystem and grows it to the size of its image, through a device
// that the kernel detaches with its last user. A mount for that is detached.
func (f *Filesystems) Prepare(ctx context.Context, v *staged.Volume, used filesystem.Filesystem) (err error) {
	device, err := f.devices.Attach(ctx, v, false, true)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, f.devices.CloseAndDetach(ctx, v, device)) }()

	return f.checkAndGrow(ctx, v, used, device)
}

// Grow grows a filesystem that is not mounted to the size of its device, which must be writable.
func Grow(ctx context.Context, used filesystem.Filesystem, device *loop.Device) error {
	err := used.GrowUnmounted(ctx, device.Path)
	if errors.Is(err, filesystem.ErrNeedsMount) {
		// The unmount writes the growth back from the log.
		err = fill(ctx, used, device)
	}

	switch {
	case err == nil:
		return nil
	case errors.Is(err, filesystem.ErrGrowLimit):
		// The request names no size: the image has one that the controller refuses.
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "grow %s: %w", used.Name(), err)
	default:
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}
}

// replayLog mounts the filesystem detached, so that the kernel writes its log back.
func replayLog(v *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	var flags []string
	if v.Copy {
		// Its source, which has the same UUID, may be mounted.
		flags = used.DuplicateUUIDFlags()
	}

	if err := mount.Replay(device.Path, used.Name(), flags, used.FinishReplay); err != nil {
		return errdefs.Errorf(errdefs.ErrInternal, "the log can't be replayed: %w", err)
	}

	return nil
}

// mountDevice mounts the filesystem detached. It grows one that is mounted for writing by what Grow
// has left, or all of it if publications outlived the staging.
func mountDevice(ctx context.Context, used filesystem.Filesystem, device *loop.Device, options mount.Options,
) (*mount.Detached, error) {
	tree, err := mountChecked(used, device, options)
	if err != nil || options.ReadOnly() {
		return tree, err
	}

	if err := growTree(ctx, used, device, tree); err != nil {
		tree.Close()

		return nil, err
	}

	return tree, nil
}

// mountChecked mounts a filesystem that the check has found clean.
func mountChecked(used filesystem.Filesystem, device *loop.Device, options mount.Options) (*mount.Detached, error) {
	tree, err := mount.Mount(device.Path, used.Name(), options)
	if errors.Is(err, mount.ErrCorrupted) {
		// The check trusts a filesystem that is marked clean.
		return nil, errdefs.Errorf(errdefs.ErrInternal, "the %s is damaged; repair a copy of its image by hand, or restore a snapshot: %w",
			used.Name(), err)
	}

	if err != nil {
		return nil, explainMountFailure(err, used, device, options)
	}

	return tree, nil
}

// explainMountFailure returns INVALID_ARGUMENT if a mount failed because of its flags: most of
// them are the filesystem's, and only its kernel module knows the valid ones. The flags are
// the cause if the mount succeeds without them and fails again with them.
func explainMountFailure(failure error, used filesystem.Filesystem, device *loop.Device, options mount.Options) error {
	without := mount.Options{}
	if options.ReadOnly() {
		without = without.WithReadOnly()
	}

	if canMount(used, device, without) && !canMount(used, device, options) {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: with its mount_flags: %w", failure)
	}

	return failure
}

// canMount reports whether the filesystem can be mounted with these options.
func canMount(used filesystem.Filesystem, device *loop.Device, options mount.Options) bool {
	tree, err := mount.Mount(device.Path, used.Name(), options)
	if err != nil {
		return false
	}

	tree.Close()

	return true
}

// growTree grows a mounted filesystem to the size of its device.
func growTree(ctx context.Context, used filesystem.Filesystem, device *loop.Device, tree *mount.Detached) error {
	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}
	defer root.Close()

	if err := used.GrowMounted(ctx, root, device.SizeBytes); err != nil {
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}

	return nil
}
