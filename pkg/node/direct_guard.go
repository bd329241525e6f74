package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// checkNoGuest returns FAILED_PRECONDITION where a guest may have the volume: it
// is published, be it that the record of that was lost, or a runtime was told of
// its device.
func (s *Service) checkNoGuest(use *staged.Volume) error {
	points, err := mount.List()
	if err != nil {
		return err
	}

	if at := slices.IndexFunc(points, func(point mount.Point) bool { return isDirectMount(use, point) }); at >= 0 {
		return rpc.Errorf(codes.FailedPrecondition, "it is assigned to a virtual machine at %s; unpublish it there first", points[at].Path)
	}

	assigned, err := s.config.Direct.Root.List()
	if err != nil {
		return err
	}

	return s.checkNotAmong(assigned, use)
}

// checkNotAssigned is the same for a volume that is not a direct one. An unsafe
// directory of the runtime does not keep other volumes from being used.
func (s *Service) checkNotAssigned(use *staged.Volume) error {
	if s.lockImage(use, flock.TryLock) == nil {
		return nil // attached nowhere: no need to read all that is assigned
	}

	assigned, err := s.config.Direct.Root.List()
	if errors.Is(err, kata.ErrUnsafeRoot) {
		s.config.Log.Debug("it is not known what is assigned to virtual machines", "volume", use.VolumeID, "error", err)

		return nil
	}

	if err != nil {
		return unknown(err, use, "assigned to a virtual machine")
	}

	return s.checkNotAmong(assigned, use)
}

func (s *Service) checkNotAmong(assigned []kata.Entry, use *staged.Volume) error {
	for _, each := range assigned {
		assigned, err := s.isDeviceOf(use, each.Device)
		if err != nil {
			return err
		}

		if assigned {
			return rpc.Errorf(codes.FailedPrecondition,
				"its device %s is assigned to a virtual machine (sandbox %q) at %s; unpublish it there first",
				each.Device, each.Sandbox, each.TargetPath)
		}
	}

	return nil
}

// isDeviceOf says whether a device, named by its path on the host, has the
// volume's image.
func (s *Service) isDeviceOf(use *staged.Volume, device string) (bool, error) {
	number, isLoop := loopNumber(mount.Point{Source: device})
	if !isLoop {
		return false, nil
	}

	found, err := s.hasImage(use, number)
	if errors.Is(err, loop.ErrBackingUnresponsive) {
		// Its name is not the volume's: other programs' images are passed over (decision 0025).
		return false, nil
	}

	return found, err
}

// checkFree returns FAILED_PRECONDITION for an image that is attached: a device that
// a guest had open at its detach goes with the guest, and until then nothing of it
// is read.
func (s *Service) checkFree(use *staged.Volume) error {
	// It waits a moment for whoever is about to let go of it.
	err := s.lockImage(use, flock.Lock)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return rpc.Errorf(codes.FailedPrecondition,
			"%w: a virtual machine or a program has its device open still, or another node has it; that has to end first", loop.ErrImageLocked)
	}

	return err
}

// lockImage tries for an instant to have the image alone, which it is not where it is
// attached.
func (s *Service) lockImage(use *staged.Volume, lock func(image *os.File, how int) error) error {
	place, err := s.poolOf(use)
	if err != nil {
		return err
	}

	image, err := place.OpenImage(use.VolumeID, os.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()

	if err := lock(image, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the image: %w", err)
	}

	return nil
}

// endCheck ends a check that was begun before the volume was staged. Since then
// there is no other.
func (s *Service) endCheck(ctx context.Context, use *staged.Volume) error {
	ctx, cancel := context.WithTimeoutCause(ctx, detachLimit,
		rpc.Errorf(codes.Unavailable, "a check of it does not come to its end; see the health of its pool"))
	defer cancel()

	return s.checker.Cancel(ctx, use.VolumeID)
}
