package device

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// attachImage attaches the open image to a loop device: the one that it is attached to
// already, or a new one, if possible with the number of the volume's device slot. With
// autoClear the kernel detaches the device with its last user.
func (d *Devices) attachImage(
	ctx context.Context, v *staged.Volume, image *os.File, readOnly, autoClear bool,
) (*loop.Device, error) {
	preferred := None
	if v.Slot != staged.NoSlot && !readOnly {
		preferred = d.config.Loops.NumberOfSlot(v.Slot)
	}

	device, err := d.config.Loops.Attach(ctx, image, loop.AttachOptions{
		ReadOnly:  readOnly,
		Buffered:  v.Parameters.BlockSize == volume.SmallBlockSize,
		BlockSize: v.Parameters.BlockSize,
		AutoClear: autoClear,
		NoDiscard: v.Parameters.Provisioning == volume.Thick,
		// An existing attachment of the image is another node's, unless publications outlived
		// the staging here: records are stored before devices are attached.
		Exclusive:       v.SharedByReaders() || len(v.Publications) == 0,
		PreferredNumber: preferred,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.VolumeID, err)
	}

	if err := d.announce(ctx, v, image, device, readOnly); err != nil {
		return nil, errors.Join(err, device.Close(), d.detachNew(ctx, v, device.Number))
	}

	return device, nil
}

// announce reports a device that has just been attached, and sets its queue.
func (d *Devices) announce(ctx context.Context, v *staged.Volume, image *os.File, device *loop.Device, readOnly bool) error {
	info, err := image.Stat()
	if err != nil {
		return err
	}

	d.config.Events.Attached(v, device, info.Size(), readOnly && v.ExposesRawDevice() && !v.IsReadOnly())

	wanted, err := d.config.Pools.MutableParameters(v)
	if err != nil {
		return err
	}

	return d.config.Tuner.SetQueue(ctx, v.VolumeID, device.Number, wanted)
}

// Attach attaches the file that has the name of the volume's image. Another node that
// formats it may replace the image between its opening and its locking; the file that was
// attached then has no name any more, is detached again, and the new one attached.
func (d *Devices) Attach(ctx context.Context, v *staged.Volume, readOnly, autoClear bool) (*loop.Device, error) {
	stored, err := d.config.Pools.Of(v)
	if err != nil {
		return nil, err
	}

	for {
		device, isCurrent, err := d.attachOnce(ctx, v, stored, readOnly, autoClear)
		if err != nil || isCurrent {
			return device, err
		}

		if err := errors.Join(device.Close(), d.detachNew(ctx, v, device.Number)); err != nil {
			return nil, err
		}
	}
}

// attachOnce also reports whether the attached file is still the volume's image.
func (d *Devices) attachOnce(
	ctx context.Context, v *staged.Volume, stored *pool.Pool, readOnly, autoClear bool,
) (*loop.Device, bool, error) {
	flag := os.O_RDWR
	if readOnly {
		flag = os.O_RDONLY
	}

	image, err := stored.Images.Open(v.ObjectID(), flag)
	if err != nil {
		return nil, false, err
	}
	defer image.Close()

	device, err := d.attachImage(ctx, v, image, readOnly, autoClear)
	if err != nil {
		return nil, false, err
	}

	isCurrent, err := stored.Images.IsCurrent(v.ObjectID(), image)
	if err != nil {
		return nil, false, errors.Join(err, device.Close(), d.detachNew(ctx, v, device.Number))
	}

	return device, isCurrent, nil
}

// detachNew detaches a device after an error, unless the volume was in use through it before. The
// second device of a volume that exposes a raw device is new beside any publications.
func (d *Devices) detachNew(ctx context.Context, v *staged.Volume, number int) error {
	if d.raw.Had(v.VolumeID, number) || !v.ExposesRawDevice() && len(v.Publications) > 0 {
		return nil
	}

	return d.Detach(ctx, v, number)
}

// Detach detaches the device and returns when it is gone. It does not ask the image, whose filesystem may
// be gone, except before Linux 5.15, which has no sequences.
func (d *Devices) Detach(ctx context.Context, v *staged.Volume, number int) error {
	device, attached, err := d.config.Loops.Attachment(number)
	observed := loop.Status{Number: number, Sequence: device.Sequence}

	if attached && device.Sequence == 0 {
		observed, attached, err = d.config.Loops.Status(number)
	}

	if err != nil || !attached {
		return err
	}

	return d.AwaitDetach(ctx, v, observed)
}

// AwaitDetach detaches the device unless its number has another attachment by now, and
// returns when it is gone.
func (d *Devices) AwaitDetach(ctx context.Context, v *staged.Volume, device loop.Status) error {
	return d.await(ctx, v, device.Number, device.Sequence, func(ctx context.Context) error {
		return d.config.Loops.DetachSame(ctx, device)
	})
}

// await calls detach, which returns when the device is gone, within detachLimit.
func (d *Devices) await(
	ctx context.Context, v *staged.Volume, number int, sequence uint64, detach func(context.Context) error,
) error {
	d.config.Tuner.ResetQueue(v.VolumeID, number)
	d.config.Events.Detached(number)

	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()

	err := detach(ctx)
	if errors.Is(err, loop.ErrInUse) {
		d.config.Events.DeviceBusy(v, number, sequence)
	}

	if err != nil {
		return fmt.Errorf("volume %s: %w", v.VolumeID, err)
	}

	return nil
}

// CloseAndDetach closes a device that is detached with its last user, and returns when it is
// gone, so that the image can be attached again.
func (d *Devices) CloseAndDetach(ctx context.Context, v *staged.Volume, device *loop.Device) error {
	return errors.Join(device.Close(), d.AwaitDetach(context.WithoutCancel(ctx), v, device.Status))
}
