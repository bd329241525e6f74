package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// grow lets the filesystem fill its device of that size: here while no guest can have it, else
// in the guest. A CO also asks for it after a pod was restarted, whose volume was grown when
// it was staged.
func (d *Access) grow(ctx context.Context, v *staged.Volume, size int64) error {
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

func (d *Access) growInGuest(ctx context.Context, v *staged.Volume, size int64) error {
	if v.Publications[0].ReadOnly {
		return errReadOnlyGuest
	}

	entry, err := d.Assignments.assignmentOf(v)
	if err != nil {
		return err
	}

	return d.config.Runtimes.Guest.Resize(ctx, entry, size)
}

// guestCause returns the part of a guest's failure that the answer contains. The message of a
// guest or a runtime is only logged.
func guestCause(failure error) error {
	for _, cause := range []error{errReadOnlyGuest, kata.ErrUnimplemented, kata.ErrNoSandbox, kata.ErrNoAnswer} {
		if errors.Is(failure, cause) {
			return cause
		}
	}

	return failure
}

// growUnpublished grows the filesystem of a volume that is staged and not published.
func (d *Access) growUnpublished(ctx context.Context, v *staged.Volume) error {
	if err := d.Guard.CheckNoGuest(v); err != nil {
		return err
	}

	used, err := filesystem.ByName(v.FSType(), d.config.Run)
	if err != nil {
		return err
	}

	device, err := d.config.Devices.Open(ctx, v)
	if err != nil {
		return err
	}
	defer device.Close()

	return access.Grow(ctx, used, device)
}
