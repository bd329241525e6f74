package access

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// grow lets the filesystem fill its device of that size: here while no guest can have it, else
// in the guest. A CO also asks for it after a pod was restarted, whose volume was grown when
// it was staged.
func (d directVolume) grow(ctx context.Context, v *staged.Volume, size int64) error {
	if size <= v.FilledBytes {
		return nil
	}

	if len(v.Publications) == 0 {
		if err := d.growUnpublished(ctx, v); err != nil {
			return err
		}

		return d.recordFilledBytes(ctx, v, size)
	}

	err := d.growInGuest(ctx, v, size)
	if err != nil {
		d.config.Log.Warn("a guest did not grow a volume", "volume", v.VolumeID, "bytes", size, "error", err)
	}

	const later = "its device has %d bytes, and its filesystem takes them when it is staged the next time: %w"

	switch {
	case err == nil:
		return d.recordFilledBytes(ctx, v, size)
	case errors.Is(err, kata.ErrUnimplemented), errors.Is(err, kata.ErrNoSandbox):
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "the guest does not grow it; "+later, size, guestCause(err))
	case errors.Is(err, kata.ErrNoAnswer):
		return errdefs.Errorf(errdefs.ErrUnavailable,
			"the guest did not answer the request to grow it; try again, or else "+later, size, guestCause(err))
	default:
		return err
	}
}

// errReadOnlyGuest means that a guest cannot grow a volume that it has read-only.
var errReadOnlyGuest = fmt.Errorf("%w: it has the volume read-only", kata.ErrUnimplemented)

func (d directVolume) growInGuest(ctx context.Context, v *staged.Volume, size int64) error {
	if v.Publications[0].ReadOnly {
		return errReadOnlyGuest
	}

	entry, err := d.assignmentOf(v)
	if err != nil {
		return err
	}

	return d.config.Direct.Guest.Resize(ctx, entry, size)
}

// guestCause returns the part of a guest's failure that the answer contains. The message of a
// guest or a runtime is only logged.
func guestCause(failure error) error {
	if errors.Is(failure, errReadOnlyGuest) {
		return errReadOnlyGuest
	}

	for _, cause := range []error{kata.ErrUnimplemented, kata.ErrNoSandbox, kata.ErrNoAnswer} {
		if errors.Is(failure, cause) {
			return cause
		}
	}

	return failure
}

// growUnpublished grows the filesystem of a volume that is staged and not published.
func (d directVolume) growUnpublished(ctx context.Context, v *staged.Volume) error {
	if err := d.CheckNoGuest(v); err != nil {
		return err
	}

	used, err := filesystem.ByName(v.FSType(), d.config.Run)
	if err != nil {
		return err
	}

	device, err := d.openDevice(ctx, v)
	if err != nil {
		return err
	}
	defer device.Close()

	return growDevice(ctx, used, device)
}

// openDevice opens the device that the volume is attached to.
func (p *Provider) openDevice(ctx context.Context, v *staged.Volume) (*loop.Device, error) {
	held, err := p.devices.get(v.VolumeID)
	if err != nil {
		return nil, err
	}

	image, err := p.openImage(v, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := p.config.Loops.Attach(ctx, image, loop.AttachOptions{
		Buffered: v.Parameters.BlockSize == volume.SmallBlockSize, BlockSize: v.Parameters.BlockSize, PreferredNumber: NoDevice,
		NoDiscard: v.Parameters.Provisioning == volume.Thick,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.VolumeID, err)
	}

	if device.Number != held.Staged {
		return nil, errors.Join(p.closeAndDetach(ctx, v, device), errDeviceTaken)
	}

	return device, nil
}
