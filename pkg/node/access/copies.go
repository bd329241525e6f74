package access

import (
	"context"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// finishUUIDChange completes a change of the UUID that a crash has interrupted, because a
// filesystem with two UUIDs fails every check. The change may be to the UUID of another
// volume: the source may have been in the middle of it when it was copied.
func finishUUIDChange(ctx context.Context, v *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	if !v.Copy {
		return nil
	}

	found, err := filesystem.UUID(device.File())
	if err != nil {
		return fmt.Errorf("read the filesystem's UUID: %w", err)
	}

	done, err := used.HasUUID(device.File(), found)
	if err != nil {
		return fmt.Errorf("check the filesystem's UUID: %w", err)
	}

	if done {
		return nil
	}

	return used.SetUUID(ctx, device.Path, found)
}

// finishCopyForReaders does at the first staging of a copy for readers what a read-only mount cannot do: it
// replays the log that was copied, gives the filesystem a UUID of its own, and grows it to an
// image larger than its source. The new UUID marks that this is done.
func (f *Filesystems) finishCopyForReaders(ctx context.Context, v *staged.Volume, used filesystem.Filesystem) (err error) {
	if !v.Copy || !v.MountOptions().ReadOnly() || len(v.Publications) > 0 {
		return nil
	}

	defer errdefs.Wrapf(&err, "prepare a copy for read-only mounting")

	image, err := f.pools.OpenImage(v, os.O_RDONLY)
	if err != nil {
		return err
	}

	done, err := used.HasUUID(image, v.VolumeID)
	_ = image.Close()

	if done || err != nil {
		return err
	}

	return f.Prepare(ctx, v, used)
}

// leastGrowth is more than the end of a device that a filesystem may leave unused, because it
// is too short for a block group.
const leastGrowth = 256 << 10

// fill grows the filesystem to the size of its device, through a detached mount.
func fill(ctx context.Context, used filesystem.Filesystem, device *loop.Device) error {
	// The superblock is read first, because a mount is expensive.
	has, err := used.SizeBytes(device.File())
	if err != nil || device.SizeBytes-has < leastGrowth {
		return err
	}

	tree, err := mountChecked(used, device, mount.Options{})
	if err != nil {
		return err
	}
	defer tree.Close()

	return growTree(ctx, used, device, tree)
}
