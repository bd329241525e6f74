package access

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// mountedImage is the access to a volume with a filesystem on an image: the image's loop
// device is mounted at the staging path. The kernel detaches the device with its last user, so
// that it is never left, whatever fails and whenever the process dies.
type mountedImage struct{ mounted }

// Stage formats an empty image, checks the filesystem of another one, grows it to the size
// of its device, and mounts it.
func (m mountedImage) Stage(ctx context.Context, v *staged.Volume, staging *mount.Target) error {
	if err := m.CheckNotAssigned(v); err != nil {
		return err
	}

	err := m.stageMount(v, staging, func(options mount.Options) error {
		if len(v.Publications) == 0 {
			// An earlier unstaging may have been interrupted.
			if err := m.DetachLeft(ctx, v); err != nil {
				return err
			}
		}

		return m.mountImage(ctx, v, staging, options)
	})
	if err != nil {
		m.config.Checker.RecordFailure(ctx, v, err)
	}

	return err
}

func (m mountedImage) mountImage(ctx context.Context, v *staged.Volume, staging *mount.Target, options mount.Options) error {
	fs, err := filesystem.ByName(v.FSType(), m.config.Run)
	if err != nil {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: %w", err)
	}

	formatted, err := m.formatIfBlank(ctx, v, fs)
	if err != nil {
		return err
	}

	if v.Copy && options.ReadOnly() && len(v.Publications) == 0 {
		if err := m.finishCopyForReaders(ctx, v, fs); err != nil {
			return fmt.Errorf("prepare a copy for read-only mounting: %w", err)
		}
	}

	device, err := m.attachForMount(ctx, v)
	if err != nil {
		return err
	}
	defer device.Close()

	checked, err := m.prepareDevice(ctx, v, fs, device, formatted)
	if err != nil {
		return err
	}

	tree, err := mountDevice(ctx, fs, device, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	// Before the mount is attached: a retry after a kill finds the volume staged and records
	// nothing.
	switch {
	case formatted:
		m.config.Checker.RecordFormatted(ctx, v)
	case checked:
		m.acceptErrorCount(v, device.Number, tree)
	}

	return tree.Attach(staging)
}

// prepareDevice grows the filesystem on the device to its size. It first checks one that is not new, and
// reports whether it did.
func (m mountedImage) prepareDevice(
	ctx context.Context, v *staged.Volume, fs filesystem.Filesystem, device *loop.Device, formatted bool,
) (bool, error) {
	// If publications outlived the staging, the filesystem is mounted, and was checked then.
	checked := !formatted && !v.SharedByReaders() && len(v.Publications) == 0

	switch {
	case checked:
		return true, m.checkAndGrow(ctx, v, fs, device)
	case formatted:
		// It may have been expanded meanwhile.
		return false, growDevice(ctx, fs, device)
	default:
		return false, nil
	}
}

// attachForMount attaches the device that mountImage mounts.
func (m mountedImage) attachForMount(ctx context.Context, v *staged.Volume) (*loop.Device, error) {
	device, err := m.attachByName(ctx, v, v.SharedByReaders(), true)
	if errors.Is(err, loop.ErrImageLocked) && m.detachForgotten(ctx, v) == nil {
		device, err = m.attachByName(ctx, v, v.SharedByReaders(), true)
	}

	if err != nil {
		return nil, err
	}

	if err := m.recordDevice(v, device); err != nil {
		return nil, errors.Join(err, device.Close())
	}

	if err := m.config.Point.At(ctx, operation.DeviceAttached, v.VolumeID); err != nil {
		return nil, errors.Join(err, device.Close())
	}

	return device, nil
}

// acceptErrorCount records the kernel's error count as accepted: the check at staging found
// the filesystem clean, but the filesystem keeps the count.
func (m mountedImage) acceptErrorCount(v *staged.Volume, number int, tree *mount.Detached) {
	root, err := tree.OpenRoot()
	if err != nil {
		return // the next probe reports it
	}
	defer root.Close()

	if counted, err := filesystem.ReadErrors(v.FSType(), number, root); err == nil {
		m.config.Checker.SetErrorCount(v.VolumeID, counted.Count)
	}
}

func (m mountedImage) Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	point, isVolume, err := m.mountOf(v, path)
	if err != nil {
		return 0, err
	}

	number, isLoop := point.LoopDevice()
	if !isVolume || !isLoop {
		return 0, goneFrom(v, path)
	}

	size, err := m.resizeDevices([]int{number}, asked)
	if err != nil {
		return 0, err
	}

	options, err := MountOptions(v.Capability, v.IsReadOnly())
	if err != nil || options.ReadOnly() {
		return size, err
	}

	return size, m.growMounted(ctx, v, size)
}

// growMounted grows the filesystem through the staging path, which is writable even if the
// publication is not.
func (m mountedImage) growMounted(ctx context.Context, v *staged.Volume, size int64) error {
	fs, err := filesystem.ByName(v.FSType(), m.config.Run)
	if err != nil {
		return err
	}

	// A frozen filesystem would block the growth until it is thawed.
	if err := m.checkThawed(v); err != nil {
		return err
	}

	err = m.growths.run(ctx, v.VolumeID, growthLimit, func() error {
		root, _, err := m.openMounted(v, v.StagingPath)
		if err != nil {
			return err
		}

		// What is beneath a staging that another program has unmounted is a filesystem of the host.
		if root == nil {
			return errdefs.Errorf(errdefs.ErrFailedPrecondition, "it is not mounted at its staging path %s any more; stage it again", v.StagingPath)
		}
		defer root.Close()

		return fs.GrowMounted(ctx, root, size)
	})
	if err != nil {
		return fmt.Errorf("grow the mounted %s (the next NodeStageVolume grows it, too): %w", fs.Name(), err)
	}

	if fs.GrowthSurvivesCrash() {
		return nil
	}

	// A freeze writes back the log, which may have the growth of an earlier call, too, that
	// was killed after it.
	targets := freeze.Targets{}
	if err := m.AddFreezeTargets(v, &targets); err != nil {
		return err
	}

	return m.config.Freezer.WithFrozen(ctx, targets, func(context.Context) error { return nil })
}

func (m mountedImage) Stats(_ context.Context, _ *staged.Volume, at *mount.Target) (Stats, error) {
	usage, err := at.Usage()

	return Stats{Usage: usage, Filesystem: &usage}, err
}

func (m mountedImage) Devices(v *staged.Volume) ([]int, error) {
	point, mounted, err := m.observe.MountAt(v.StagingPath)
	if err != nil || !mounted {
		return nil, err
	}

	device, ok, err := m.observe.DeviceAt(v, point)
	if err != nil || !ok {
		return nil, err
	}

	return []int{device.Number}, nil
}

func (m mountedImage) DeviceOf(v *staged.Volume, _ staged.Publication) (int, error) {
	numbers, err := m.Devices(v)
	if err != nil || len(numbers) == 0 {
		return NoDevice, err
	}

	return numbers[0], nil
}

// AddFreezeTargets adds the filesystem if it is mounted and may be written.
func (m mountedImage) AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error {
	if v.IsReadOnly() {
		return nil
	}

	root, err := m.openWritable(v)
	if err != nil || root == nil {
		return err
	}

	targets.Filesystems = append(targets.Filesystems, freeze.Filesystem{VolumeID: v.VolumeID, FSType: v.FSType(), Root: root})

	return nil
}

// openWritable opens the root of the volume's filesystem, nil unless it is mounted and may be
// written.
func (p *Provider) openWritable(v *staged.Volume) (*os.File, error) {
	root, point, err := p.OpenRoot(v)
	if errors.Is(err, unix.EIO) {
		// An XFS that has shut down returns EIO for everything.
		return nil, errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"its %s has stopped working; see the kernel's log, unstage the volume and stage it again: %w", v.FSType(), err)
	}

	if err != nil || root == nil {
		return nil, err
	}

	if err := checkWritable(v, point); err != nil || point.SuperReadOnly {
		return nil, errors.Join(err, root.Close())
	}

	return root, nil
}

// CheckStored returns NOT_FOUND unless the pool stores the volume's image.
func (m mountedImage) CheckStored(v *staged.Volume) error { return m.checkImage(v) }

// CheckStored returns NOT_FOUND unless the pool stores the volume's image.
func (r rawDevice) CheckStored(v *staged.Volume) error { return r.checkImage(v) }

func (p *Provider) checkImage(v *staged.Volume) error {
	stored, err := p.PoolOf(v)
	if err != nil {
		return err
	}

	image, err := stored.OpenImage(v.VolumeID, os.O_RDONLY)
	if err != nil {
		return err
	}

	_ = image.Close()

	return nil
}
