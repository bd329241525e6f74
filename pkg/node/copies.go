package node

import (
	"context"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// finishCopy ends a change of the UUID that a crash has cut short, before which
// no check can judge the filesystem. The change may be to another volume's: what
// this one is a copy of may have been in the middle of it.
func finishCopy(ctx context.Context, use *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	if !use.Copy {
		return nil
	}

	found, err := filesystem.UUID(device.File())
	if err != nil {
		return fmt.Errorf("look for the filesystem's UUID: %w", err)
	}

	done, err := used.HasUUID(device.File(), found)
	if err != nil {
		return fmt.Errorf("look whether the filesystem has its UUID: %w", err)
	}

	if done {
		return nil
	}

	return used.SetUUID(ctx, device.Path, found)
}

// settleCopy does at the first staging of a copy what its readers can't do: the
// log that it was copied with is replayed, it gets a UUID of its own, and it
// fills an image larger than its source. Until then nobody reads it; afterwards
// the UUID tells that it is done.
func (s *Service) settleCopy(ctx context.Context, use *staged.Volume, used filesystem.Filesystem) error {
	settled, err := s.settled(use, used)
	if settled || err != nil {
		return err
	}

	return s.prepareImage(ctx, use, used)
}

// settled says whether the image's filesystem has the volume's UUID.
func (s *Service) settled(use *staged.Volume, used filesystem.Filesystem) (bool, error) {
	bytes, err := s.poolOf(use)
	if err != nil {
		return false, err
	}

	image, err := bytes.OpenImage(use.VolumeID, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer image.Close()

	return used.HasUUID(image, use.VolumeID)
}

// leastGrowth is more than what a filesystem may leave unused of its device,
// being too short for a group of its own.
const leastGrowth = 256 << 10

// fill lets the filesystem take all of its device, where nobody sees it.
func fill(ctx context.Context, used filesystem.Filesystem, device *loop.Device, options mount.Options) error {
	bytes, err := device.SizeBytes()
	if err != nil {
		return err
	}

	// A mount is too much for finding out that there is nothing to do.
	has, err := used.SizeBytes(device.File())
	if err != nil || bytes-has < leastGrowth {
		return err
	}

	tree, err := mountSound(used, device, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	return growTree(ctx, used, device, tree)
}
