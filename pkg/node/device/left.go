package device

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// The kernel detaches the device of a mounted image with its last user. That may be later than the last
// unmount: a frozen filesystem stays, and other programs may have the device open, or have the volume
// mounted in their mount namespaces. The record of the device says so until it is gone.

// Record records the device that a mounted image is attached to. It does not wait for the disk: a
// power failure takes the device, too.
func (d *Devices) Record(v *staged.Volume, device *loop.Device) error {
	attached := staged.Device{Number: device.Number, Sequence: device.Sequence}
	if v.Device != nil && *v.Device == attached {
		return nil
	}

	changed := v.Clone()
	changed.Device = &attached

	return d.config.Volumes.PutLazily(changed)
}

// Identify returns the volume with the filesystem and the device that are mounted at its staging path.
func (d *Devices) Identify(v *staged.Volume) (*staged.Volume, error) {
	point, mounted, err := d.config.Observer.MountAt(v.StagingPath)
	if err != nil || !mounted {
		return v, err
	}

	device, isImage, err := d.config.Observer.DeviceAt(v, point)
	if err != nil || !isImage {
		return v, err
	}

	found := v.Clone()
	if found.FSType() == "" {
		found.Parameters.FSType = point.FSType
	}

	found.Device = &staged.Device{Number: device.Number, Sequence: device.Sequence}

	return found, nil
}

// RecordMounted records the device of a volume that is found mounted, if its record lacks it.
func (d *Devices) RecordMounted(v *staged.Volume) error {
	if v.Device != nil || !v.IsMountedImage() {
		return nil
	}

	found, err := d.Identify(v)
	if err != nil {
		return err
	}

	return d.config.Volumes.PutLazily(found)
}

// leftDevice returns the device of a mounted image as long as it is attached, false where there is none.
func (d *Devices) leftDevice(v *staged.Volume) (loop.Attachment, bool, error) {
	if !v.IsMountedImage() || v.Device == nil && !v.Ephemeral {
		return loop.Attachment{}, false, nil
	}

	if v.Device == nil {
		// By the name of its image, which only this node attaches.
		all, err := d.config.Loops.Attachments()

		at := slices.IndexFunc(all, func(each loop.Attachment) bool { return path.Base(each.BackingPath) == observe.ImageName(v.ObjectID()) })
		if at < 0 {
			return loop.Attachment{}, false, observe.Unknown(err, v, "attached")
		}

		return all[at], true, nil
	}

	attachment, attached, err := d.config.Loops.Attachment(v.Device.Number)
	if err != nil || !attached || attachment.Sequence != v.Device.Sequence {
		return loop.Attachment{}, false, observe.Unknown(err, v, "attached to "+loop.Name(v.Device.Number))
	}

	// Disk sequences begin again with each boot, so that after one another program's device may have it.
	attached, err = d.config.Observer.HasImage(v, attachment.Number)

	return attachment, attached, err
}

// DetachLeft waits until the device of a mounted image that is not mounted any more is gone, and thaws
// the filesystem that keeps it.
func (d *Devices) DetachLeft(ctx context.Context, v *staged.Volume) error {
	left, attached, err := d.leftDevice(v)
	if err != nil || !attached {
		return err
	}

	err = d.config.Freezer.ThawDevice(v.VolumeID, v.FSType(), left.Number, v.MountOptions())
	if err != nil && !errors.Is(err, loop.ErrNotAttached) {
		return err
	}

	return d.await(ctx, v, left.Number, left.Sequence, func(ctx context.Context) error {
		return d.config.Loops.AwaitDetached(ctx, left.Number, left.Sequence)
	})
}

// DetachForgotten is DetachLeft for devices that no record names, such as those that an earlier release has
// left. The kernel detaches them with their last user. That of another node on this machine stays, since
// the volume is mounted there.
func (d *Devices) DetachForgotten(ctx context.Context, v *staged.Volume) error {
	image, err := d.config.Pools.OpenImage(v, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	found, err := d.config.Loops.Find(image)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, forgottenLimit)
	defer cancel()

	for _, each := range found {
		if !each.AutoClear {
			continue
		}

		err := d.config.Freezer.ThawDevice(v.VolumeID, v.FSType(), each.Number, v.MountOptions())
		if err == nil {
			err = d.config.Loops.AwaitDetached(ctx, each.Number, each.Sequence)
		}

		if err != nil && !errors.Is(err, loop.ErrNotAttached) {
			return err
		}
	}

	return nil
}

// forgottenLimit bounds the wait for a device that may be another node's.
const forgottenLimit = time.Second

// IsLeft reports whether the device of a mounted image is attached although the volume is not mounted.
func (d *Devices) IsLeft(v *staged.Volume) (bool, error) {
	_, attached, err := d.leftDevice(v)

	return attached, err
}
