package access

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// attachImage attaches the open image to a loop device: the one that it is attached to
// already, or a new one, if possible with the number of the volume's device slot. With
// autoClear the kernel detaches the device with its last user.
func (p *Provider) attachImage(
	ctx context.Context, v *staged.Volume, image *os.File, readOnly, autoClear bool,
) (*loop.Device, error) {
	preferred := NoDevice
	if v.Slot != NoDevice && !readOnly {
		preferred = p.config.Loops.NumberOfSlot(v.Slot)
	}

	device, err := p.config.Loops.Attach(ctx, image, loop.AttachOptions{
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

	info, err := image.Stat()
	if err == nil {
		p.config.Prober.Attached(v, device, info.Size(), readOnly && v.ExposesRawDevice() && !v.IsReadOnly())

		err = p.tuneNew(ctx, v, device.Number)
	}

	if err != nil {
		return nil, errors.Join(err, device.Close(), p.detachNew(ctx, v, device.Number))
	}

	return device, nil
}

// Tree returns a detached mount of the volume: of the filesystem on its image, or of its
// directory.
func (p *Provider) Tree(ctx context.Context, v *staged.Volume, options mount.Options) (*mount.Detached, error) {
	if !v.IsImage() {
		return p.directoryTree(v, options)
	}

	device, err := p.attachByName(ctx, v, v.IsReadOnly(), true)
	if err != nil {
		return nil, err
	}
	defer device.Close()

	return mount.Mount(device.Path, v.FSType(), options)
}

// attachByName attaches the file that has the name of the volume's image. Another node that
// formats it may replace the image between its opening and its locking; the file that was
// attached then has no name any more, is detached again, and the new one attached.
func (p *Provider) attachByName(ctx context.Context, v *staged.Volume, readOnly, autoClear bool) (*loop.Device, error) {
	stored, err := p.PoolOf(v)
	if err != nil {
		return nil, err
	}

	for {
		device, isCurrent, err := p.attachOnce(ctx, v, stored, readOnly, autoClear)
		if err != nil {
			return nil, err
		}

		if isCurrent {
			return device, nil
		}

		if err := errors.Join(device.Close(), p.detachNew(ctx, v, device.Number)); err != nil {
			return nil, err
		}
	}
}

// attachOnce also reports whether the attached file is still the volume's image.
func (p *Provider) attachOnce(
	ctx context.Context, v *staged.Volume, stored *pool.Pool, readOnly, autoClear bool,
) (*loop.Device, bool, error) {
	image, err := stored.OpenImage(v.VolumeID, openFlag(readOnly))
	if err != nil {
		return nil, false, err
	}
	defer image.Close()

	device, err := p.attachImage(ctx, v, image, readOnly, autoClear)
	if err != nil {
		return nil, false, err
	}

	isCurrent, err := stored.IsCurrentImage(v.VolumeID, image)
	if err != nil {
		return nil, false, errors.Join(err, device.Close(), p.detachNew(ctx, v, device.Number))
	}

	return device, isCurrent, nil
}

// openFlag returns the flag with which an image is opened.
func openFlag(readOnly bool) int {
	if readOnly {
		return os.O_RDONLY
	}

	return os.O_RDWR
}

// detachNew detaches a device after an error, unless the volume was in use through it before.
func (p *Provider) detachNew(ctx context.Context, v *staged.Volume, number int) error {
	if p.devices.had(v.VolumeID, number) || len(v.Publications) > 0 {
		return nil
	}

	return p.detach(ctx, v, number)
}

// detach detaches the device and returns when it is gone.
func (p *Provider) detach(ctx context.Context, v *staged.Volume, number int) error {
	device, attached, err := p.config.Loops.Status(number)
	if err != nil || !attached {
		return err
	}

	return p.awaitDetach(ctx, v, device)
}

// awaitDetach detaches the device unless another image is attached to its number by now, and
// returns when it is gone.
func (p *Provider) awaitDetach(ctx context.Context, v *staged.Volume, device loop.Status) error {
	return p.await(ctx, v, device.Number, device.Sequence, func(ctx context.Context) error {
		return p.config.Loops.DetachImage(ctx, device.Number, device.Backing)
	})
}

// await calls detach, which returns when the device is gone, within detachLimit.
func (p *Provider) await(
	ctx context.Context, v *staged.Volume, number int, sequence uint64, detach func(context.Context) error,
) error {
	p.config.Tuner.ResetQueue(v.VolumeID, number)
	p.config.Prober.Detached(number)

	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()

	err := detach(ctx)
	if errors.Is(err, loop.ErrInUse) {
		p.config.Prober.DeviceBusy(v, number, sequence)
	}

	if err != nil {
		return fmt.Errorf("volume %s: %w", v.VolumeID, err)
	}

	return nil
}

// closeAndDetach closes a device that is detached with its last user, and returns when it is
// gone, so that the image can be attached again.
func (p *Provider) closeAndDetach(ctx context.Context, v *staged.Volume, device *loop.Device) error {
	status, attached, err := p.config.Loops.Status(device.Number)
	err = errors.Join(err, device.Close())

	if attached {
		err = errors.Join(err, p.awaitDetach(context.WithoutCancel(ctx), v, status))
	}

	return err
}
