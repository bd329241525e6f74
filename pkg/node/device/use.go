package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// ErrTaken is returned where another program has detached the device.
var ErrTaken = errdefs.Errorf(errdefs.ErrFailedPrecondition, "its device was taken away; unstage it and stage it again")

// AttachRaw attaches the image of a raw-block or direct volume and remembers the device: the one of the
// staging, or the second one of read-only publications.
func (d *Devices) AttachRaw(ctx context.Context, v *staged.Volume, readOnly bool) (int, error) {
	device, err := d.Attach(ctx, v, readOnly, false)
	if err != nil {
		return None, err
	}

	if err := device.Close(); err != nil {
		return None, err
	}

	d.raw.Add(v.VolumeID, device.Number, device.Sequence, readOnly && !v.IsReadOnly())

	return device.Number, nil
}

// For returns a device that allows only what the publication may do.
func (d *Devices) For(ctx context.Context, v *staged.Volume, publication staged.Publication) (int, error) {
	if publication.ReadOnly && !v.IsReadOnly() {
		return d.AttachRaw(ctx, v, true)
	}

	numbers, err := d.raw.Get(v.VolumeID)
	if err != nil || numbers.Staged != None {
		return numbers.Staged, err
	}

	return None, ErrTaken
}

// Open opens the device that a direct volume is attached to.
func (d *Devices) Open(ctx context.Context, v *staged.Volume) (*loop.Device, error) {
	held, err := d.raw.Get(v.VolumeID)
	if err != nil {
		return nil, err
	}

	image, err := d.config.Pools.OpenImage(v, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := d.config.Loops.Attach(ctx, image, loop.AttachOptions{
		Buffered: v.Parameters.BlockSize == volume.SmallBlockSize, BlockSize: v.Parameters.BlockSize, PreferredNumber: None,
		NoDiscard: v.Parameters.Provisioning == volume.Thick,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.VolumeID, err)
	}

	if device.Number != held.Staged {
		return nil, errors.Join(d.CloseAndDetach(ctx, v, device), ErrTaken)
	}

	return device, nil
}

// Resize lets the devices take the size of their image, and returns that of the last one; OUT_OF_RANGE if
// it is not as asked.
func (d *Devices) Resize(numbers []int, asked *csi.CapacityRange) (int64, error) {
	size := int64(0)

	for _, number := range numbers {
		var err error
		if size, err = d.config.Loops.Resize(number); err != nil {
			return 0, err
		}
	}

	if required := asked.GetRequiredBytes(); size < required {
		return 0, errdefs.Errorf(errdefs.ErrOutOfRange,
			"its device has %d bytes, less than required_bytes %d; call ControllerExpandVolume first", size, required)
	}

	if limit := asked.GetLimitBytes(); limit > 0 && size > limit {
		return 0, errdefs.Errorf(errdefs.ErrOutOfRange, "its device has %d bytes, more than limit_bytes %d; a volume never shrinks", size, limit)
	}

	return size, nil
}

// CheckLength returns pool.ErrTruncated while the image of the volume is shorter than one of its devices:
// a device that took its size would hide that data is lost.
func (d *Devices) CheckLength(v *staged.Volume, numbers []int) error {
	if len(numbers) == 0 {
		return nil
	}

	image, err := d.config.Pools.OpenImage(v, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	backing, err := loop.IdentityOf(image)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		device, attached, err := d.config.Loops.Status(number)
		if err != nil {
			return err
		}

		if !attached || device.Backing != backing {
			continue
		}

		// Read after the size of the device, which another process may let grow with the image.
		info, err := image.Stat()
		if err != nil {
			return err
		}

		if info.Size() < device.SizeBytes {
			return fmt.Errorf("its image has %d bytes, and its device %d: %w", info.Size(), device.SizeBytes, pool.ErrTruncated)
		}
	}

	return nil
}

// DetachAll detaches all devices of a volume that is not staged any more.
func (d *Devices) DetachAll(ctx context.Context, v *staged.Volume) error {
	if err := d.DetachLeft(ctx, v); err != nil {
		return err
	}

	numbers, err := d.raw.Get(v.VolumeID)
	if err != nil {
		return err
	}

	for _, number := range []int{numbers.ReadOnly, numbers.Staged} {
		if number == None {
			continue
		}

		if err := d.Detach(ctx, v, number); err != nil {
			return err
		}
	}

	d.raw.drop(v.VolumeID)

	return nil
}

// DetachUnusedReader detaches the second device of a volume that has no read-only
// publication any more.
func (d *Devices) DetachUnusedReader(ctx context.Context, v *staged.Volume) error {
	numbers, err := d.raw.Get(v.VolumeID)
	if err != nil || numbers.ReadOnly == None {
		return err
	}

	if slices.ContainsFunc(v.Publications, func(p staged.Publication) bool { return p.ReadOnly }) {
		return nil
	}

	if err := d.Detach(ctx, v, numbers.ReadOnly); err != nil {
		return err
	}

	d.raw.change(v.VolumeID, func(a *Attachments) { a.ReadOnly, a.ReadOnlySequence = None, 0 })

	return nil
}
