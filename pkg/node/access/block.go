package access

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Block is the access to a volume as a block device: the node of its loop device is bound
// to the target paths.
type Block struct {
	RawDevice

	checker Checker
}

// Stage attaches the image. Nothing is mounted at the staging path.
func (b *Block) Stage(ctx context.Context, v *staged.Volume, _ *mount.Target) error {
	if _, err := b.devices.AttachRaw(ctx, v, v.IsReadOnly()); err != nil || v.IsReadOnly() {
		return err
	}

	// From now on the volume's user decides whether there is a filesystem to check.
	return b.checker.Forget(v.VolumeID)
}

// Publish binds the node of the device to the target path.
func (b *Block) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if _, err := target.MakeFile(targetFileMode); err != nil {
		return err
	}

	number, err := b.devices.For(ctx, v, p)
	if err != nil {
		return err
	}

	node, err := os.OpenFile(b.loops.Path(number), unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the node of the device: %w", err)
	}
	defer node.Close()

	return b.bind(ctx, b, v, p, node, target)
}
