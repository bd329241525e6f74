package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// growDirect lets the filesystem take its device of that size: here while nobody
// can have it, else in the guest. The CO also asks when the pod has just been
// started anew, whose volume was grown when it was staged.
func (s *Service) growDirect(ctx context.Context, use *staged.Volume, size int64) error {
	if size <= use.FilledBytes {
		return nil
	}

	if len(use.Publications) == 0 {
		if err := s.growAtRest(ctx, use); err != nil {
			return err
		}

		return s.filled(ctx, use, size)
	}

	err := s.growInGuest(ctx, use, size)
	if err != nil {
		s.config.Log.Warn("a guest did not grow a volume", "volume", use.VolumeID, "bytes", size, "error", err)
	}

	const later = "its device has %d bytes, and its filesystem takes them when it is staged the next time: %w"

	switch {
	case err == nil:
		return s.filled(ctx, use, size)
	case errors.Is(err, kata.ErrUnimplemented), errors.Is(err, kata.ErrNoSandbox):
		return rpc.Errorf(codes.FailedPrecondition, "the guest does not grow it; "+later, size, guestCause(err))
	case errors.Is(err, kata.ErrNoAnswer):
		return rpc.Errorf(codes.Unavailable, "the guest was asked in vain to grow it; try again, or else "+later, size, guestCause(err))
	default:
		return err
	}
}

// errReader is of a guest that can't be asked.
var errReader = fmt.Errorf("%w: it has the volume read-only", kata.ErrUnimplemented)

func (s *Service) growInGuest(ctx context.Context, use *staged.Volume, size int64) error {
	if use.Publications[0].ReadOnly {
		return errReader
	}

	entry, err := s.assigned(use)
	if err != nil {
		return err
	}

	return s.config.Direct.Guest.Resize(ctx, entry, size)
}

// guestCause is what of a guest's failure its user is told. The words of a guest,
// and of a runtime, are in the log only.
func guestCause(failure error) error {
	if errors.Is(failure, errReader) {
		return errReader
	}

	for _, cause := range []error{kata.ErrUnimplemented, kata.ErrNoSandbox, kata.ErrNoAnswer} {
		if errors.Is(failure, cause) {
			return cause
		}
	}

	return failure
}

// growAtRest is for a volume that is staged and nobody's.
func (s *Service) growAtRest(ctx context.Context, use *staged.Volume) error {
	if err := s.checkNoGuest(use); err != nil {
		return err
	}

	used, err := filesystem.ByName(use.FSType(), s.config.Run)
	if err != nil {
		return err
	}

	device, err := s.adopt(ctx, use)
	if err != nil {
		return err
	}
	defer device.Close()

	err = used.GrowUnmounted(ctx, device.Path)
	if errors.Is(err, filesystem.ErrNeedsMount) {
		err = fill(ctx, used, device, mount.Options{})
	}

	if err != nil {
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}

	return nil
}

// adopt opens the device that the volume has.
func (s *Service) adopt(ctx context.Context, use *staged.Volume) (*loop.Device, error) {
	bytes, err := s.poolOf(use)
	if err != nil {
		return nil, err
	}

	image, err := bytes.OpenImage(use.VolumeID, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := s.loops.Attach(ctx, image, loop.AttachOptions{
		Buffered: use.Parameters.BlockSize == volume.SmallBlockSize, BlockSize: use.Parameters.BlockSize, PreferredNumber: none,
		NoDiscard: use.Parameters.Provisioning == volume.Thick,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", use.VolumeID, err)
	}

	known, err := s.devices.get(use.VolumeID)
	if err == nil && device.Number != known.staged {
		err = rpc.Errorf(codes.FailedPrecondition, "its device was taken away; unstage it and stage it again")
		err = errors.Join(s.detachAfter(ctx, use, device), err)
	} else if err != nil {
		err = errors.Join(err, device.Close())
	}

	if err != nil {
		return nil, err
	}

	return device, nil
}
