package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Image is the access to a volume with a filesystem on an image: the image's loop
// device is mounted at the staging path. The kernel detaches the device with its last user, so
// that it is never left, whatever fails and whenever the process dies.
type Image struct {
	*Targets

	filesystems *Filesystems
	checker     Checker
	freezer     *freeze.Freezer
	point       operation.Hook
	growths     growths
}

// Stage makes the filesystem of a blank image, attaches the device, checks a filesystem that is not new,
// grows it to the device, and mounts it. A driver that has lost its records may have mounted it already.
func (m *Image) Stage(ctx context.Context, v *staged.Volume, staging *mount.Target) (err error) {
	defer func() {
		if err != nil {
			m.checker.RecordFailure(ctx, v, err)
		}
	}()

	if mounted, err := m.IsStaged(v); mounted || err != nil {
		return cmp.Or(err, m.devices.RecordMounted(v))
	}

	fs, err := m.filesystems.Of(v)
	if err != nil {
		return err
	}

	made, err := m.makeStaging(ctx, v, staging)
	if err != nil {
		return err
	}

	defer func() { err = removeAfter(err, made, staging) }()

	formatted, err := m.filesystems.FormatIfBlank(ctx, v, fs)
	if err != nil {
		return err
	}

	if err := m.filesystems.finishCopyForReaders(ctx, v, fs); err != nil {
		return err
	}

	attached, err := m.attach(ctx, v)
	if err != nil {
		return err
	}

	defer func() { err = m.release(ctx, v, attached, err) }()

	checked, err := m.prepareDevice(ctx, v, fs, attached, formatted)
	if err != nil {
		return err
	}

	tree, err := mountDevice(ctx, fs, attached, v.MountOptions())
	if err != nil {
		return err
	}
	defer tree.Close()

	// Before the mount is attached: a retry after a kill finds the volume staged and records
	// nothing.
	switch {
	case formatted:
		m.checker.RecordFormatted(ctx, v)
	case checked:
		m.acceptErrorCount(v, attached.Number, tree)
	}

	return tree.Attach(staging)
}

// makeStaging undoes what an interrupted unstaging has left, makes the staging path if it is missing, and reports
// whether it made it.
func (m *Image) makeStaging(ctx context.Context, v *staged.Volume, staging *mount.Target) (made bool, err error) {
	if err := m.UnmountAllLayers(v, staging); err != nil {
		return false, err
	}

	if len(v.Publications) == 0 {
		if err := m.devices.DetachLeft(ctx, v); err != nil {
			return false, err
		}
	}

	return staging.MakeDir(stagingMode)
}

// prepareDevice grows the filesystem on a device that is about to be mounted to its size. It first checks one
// that is not new, and reports whether it did.
func (m *Image) prepareDevice(
	ctx context.Context, v *staged.Volume, fs filesystem.Filesystem, attached *loop.Device, formatted bool,
) (bool, error) {
	// If publications outlived the staging, the filesystem is mounted, and was checked then.
	checked := !formatted && !v.SharedByReaders() && len(v.Publications) == 0

	switch {
	case checked:
		return true, m.filesystems.checkAndGrow(ctx, v, fs, attached)
	case formatted:
		// It may have been expanded meanwhile.
		return false, Grow(ctx, fs, attached)
	default:
		return false, nil
	}
}

// attach attaches the device that is mounted, and records it.
func (m *Image) attach(ctx context.Context, v *staged.Volume) (*loop.Device, error) {
	attached, err := m.devices.Attach(ctx, v, v.SharedByReaders(), true)
	if errors.Is(err, loop.ErrImageLocked) && m.devices.DetachForgotten(ctx, v) == nil {
		attached, err = m.devices.Attach(ctx, v, v.SharedByReaders(), true)
	}

	if err != nil {
		return nil, err
	}

	if err := m.devices.Record(v, attached); err != nil {
		return nil, m.release(ctx, v, attached, err)
	}

	if err := m.point.At(ctx, operation.DeviceAttached, v.VolumeID); err != nil {
		return nil, m.release(ctx, v, attached, err)
	}

	return attached, nil
}

// release closes the device of a staging that ended with err. If it failed, the device is gone afterwards,
// so that no record of the staging has to be kept.
func (m *Image) release(ctx context.Context, v *staged.Volume, attached *loop.Device, err error) error {
	if err == nil || len(v.Publications) > 0 {
		_ = attached.Close() // a mounted device stays

		return err
	}

	return errors.Join(err, m.devices.CloseAndDetach(ctx, v, attached))
}

// acceptErrorCount records the kernel's error count as accepted: the check at staging found
// the filesystem clean, but the filesystem keeps the count.
func (m *Image) acceptErrorCount(v *staged.Volume, number int, tree *mount.Detached) {
	root, err := tree.OpenRoot()
	if err != nil {
		return // the next probe reports it
	}
	defer root.Close()

	if counted, err := filesystem.ReadErrors(v.FSType(), number, root); err == nil {
		m.checker.SetErrorCount(v.VolumeID, counted.Count)
	}
}

// Unstage unmounts the volume from the staging path, and waits until the kernel has
// detached the device of its image with the last mount, so that its number is free again.
func (m *Image) Unstage(ctx context.Context, v *staged.Volume) error {
	err := m.dirs.WithTarget(v.StagingPath, func(staging *mount.Target) error { return m.unmountAndDetach(ctx, v, staging) })
	if err != nil {
		return err
	}

	// Another program, or an earlier call, may have unmounted it.
	return m.devices.DetachLeft(ctx, v)
}

// unmountAndDetach thaws and unmounts the volume, and waits until the kernel has detached the device of
// its image with the last mount.
func (m *Image) unmountAndDetach(ctx context.Context, v *staged.Volume, at *mount.Target) error {
	point, mounted, err := at.Mounted()
	if err != nil {
		return err
	}

	attached, isImage, err := m.observer.DeviceAt(v, point)
	if err != nil {
		return err
	}

	if mounted {
		if err := m.endUse(ctx, v, at); err != nil {
			return err
		}
	}

	if err := m.UnmountAllLayers(v, at); err != nil || !isImage {
		return err
	}

	return m.devices.AwaitDetach(ctx, v, attached)
}

// endUse thaws what another program has left frozen of a volume that is about to be unmounted: a frozen
// filesystem outlives its last mount. Then it waits for a growth that is under way, which has the mount
// open.
func (m *Image) endUse(ctx context.Context, v *staged.Volume, at *mount.Target) error {
	root, _, err := m.observer.OpenMounted(v, at.Path())
	if err != nil && !errors.Is(err, unix.EIO) { // which an XFS that has shut down returns for everything
		return err
	}

	if root != nil {
		if err := m.freezer.ThawRoot(v.VolumeID, root); err != nil {
			return err
		}
	}

	return m.growths.wait(ctx, v.VolumeID, growthEndLimit)
}

// tree returns a detached mount of the filesystem on the image.
func (m *Image) tree(ctx context.Context, v *staged.Volume, options mount.Options) (*mount.Detached, error) {
	attached, err := m.devices.Attach(ctx, v, v.IsReadOnly(), true)
	if err != nil {
		return nil, err
	}
	defer attached.Close()

	return mount.Mount(attached.Path, v.FSType(), options)
}

// Publish binds the filesystem that is mounted at the staging path.
func (m *Image) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return m.publishStaged(ctx, m, v, p, target)
}

// Expand grows the device, and then the filesystem unless it is mounted read-only.
func (m *Image) Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	point, isVolume, err := m.observer.MountOf(v, path)
	if err != nil {
		return 0, err
	}

	number, _ := point.LoopDevice()
	if !isVolume {
		return 0, goneFrom(v, path)
	}

	size, err := m.devices.Resize([]int{number}, asked)
	if err != nil {
		return 0, err
	}

	if v.MountOptions().ReadOnly() {
		return size, nil
	}

	return size, m.growMounted(ctx, v, size)
}

// growMounted grows the filesystem through the staging path, which is writable even if the
// publication is not.
func (m *Image) growMounted(ctx context.Context, v *staged.Volume, size int64) error {
	fs, err := m.filesystems.Of(v)
	if err != nil {
		return err
	}

	// A frozen filesystem would block the growth until it is thawed.
	if err := checkThawed(m, v); err != nil {
		return err
	}

	err = m.growths.run(ctx, v.VolumeID, growthLimit, func() error {
		root, _, err := m.observer.OpenMounted(v, v.StagingPath)
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

	return m.freezer.WithFrozen(ctx, targets, func(context.Context) error { return nil })
}

// Stats returns the usage of the filesystem.
func (m *Image) Stats(_ context.Context, _ *staged.Volume, at *mount.Target) (Stats, error) {
	usage, err := at.Usage()

	return Stats{Usage: usage, Filesystem: &usage}, err
}

// Devices implements Access.
func (m *Image) Devices(v *staged.Volume) ([]int, error) {
	point, _, err := m.observer.MountAt(v.StagingPath)
	if err != nil {
		return nil, err
	}

	attached, ok, err := m.observer.DeviceAt(v, point)
	if err != nil || !ok {
		return nil, err
	}

	return []int{attached.Number}, nil
}

// DeviceOf implements Access.
func (m *Image) DeviceOf(v *staged.Volume, _ staged.Publication) (int, error) {
	numbers, err := m.Devices(v)
	if len(numbers) == 0 {
		return device.None, err
	}

	return numbers[0], nil
}

// AddFreezeTargets adds the filesystem if it is mounted and may be written.
func (m *Image) AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error {
	if v.IsReadOnly() {
		return nil
	}

	root, point, err := m.observer.OpenRoot(v)
	if errors.Is(err, unix.EIO) {
		// An XFS that has shut down returns EIO for everything.
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"its %s has stopped working; see the kernel's log, unstage the volume and stage it again: %w", v.FSType(), err)
	}

	if err != nil || root == nil {
		return err
	}

	if err := checkWritable(v, point); err != nil || point.SuperReadOnly {
		return errors.Join(err, root.Close())
	}

	targets.Filesystems = append(targets.Filesystems, freeze.Filesystem{VolumeID: v.VolumeID, FSType: v.FSType(), Root: root})

	return nil
}
