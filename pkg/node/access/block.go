package access

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// rawBlock is the access to a volume as a block device: the node of its loop device is bound
// to the target paths.
type rawBlock struct{ rawDevice }

// Stage attaches the image. Nothing is mounted at the staging path.
func (b rawBlock) Stage(ctx context.Context, v *staged.Volume, _ *mount.Target) error {
	if err := b.CheckNotAssigned(v); err != nil {
		return err
	}

	if _, err := b.attachDevice(ctx, v, v.IsReadOnly()); err != nil || v.IsReadOnly() {
		return err
	}

	// From now on the volume's user decides whether there is a filesystem to check.
	return b.config.Checker.Forget(v.VolumeID)
}

func (b rawBlock) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if _, err := target.MakeFile(targetFileMode); err != nil {
		return err
	}

	number, err := b.deviceFor(ctx, v, p)
	if err != nil {
		return err
	}

	node, err := os.OpenFile(b.config.Loops.Path(number), unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the node of the device: %w", err)
	}
	defer node.Close()

	return b.bind(ctx, v, p, node, target)
}
