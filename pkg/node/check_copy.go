package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// errLog is of a copy whose log is dirty after its replay.
var errLog = errors.New("the log of a copy could not be replayed")

// scratch is a copy that nobody else sees.
type scratch interface{ File() *os.File }

// path is where the volume's image is. Tools read the image and not the device:
// what a filesystem writes does not go through the page cache of its device.
func (c *checking) path() string { return c.pool.VolumePath(c.volumeID, volume.BackingImage) }

// newCopy prepares a copy that will never be committed: a crash leaves what the
// next start clears away.
func (c *checking) newCopy() (*pool.Copy, error) {
	id, err := volume.NewID()
	if err != nil {
		return nil, err
	}

	return c.pool.NewCopy(c.pool,
		pool.Object{ID: c.volumeID, Backing: volume.BackingImage}, pool.Object{ID: id, Backing: volume.BackingImage}, pool.CopyOptions{})
}

// judge looks at a copy, with its log replayed if need be.
func (c *checking) judge(ctx context.Context, copied scratch) (filesystem.Verdict, error) {
	verdict, err := c.fs.Examine(ctx, copied.File().Name(), filesystem.ExamineOptions{})
	if err != nil || verdict.State != filesystem.NeedsReplay {
		return verdict, err
	}

	err = c.replay(ctx, copied.File())
	if errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG) {
		return filesystem.Verdict{State: filesystem.Damaged, Detail: "a copy of it does not mount: " + err.Error()}, nil
	}

	if err == nil {
		verdict, err = c.fs.Examine(ctx, copied.File().Name(), filesystem.ExamineOptions{})
	}

	if err == nil && verdict.State == filesystem.NeedsReplay {
		err = fmt.Errorf("%w: %s", errLog, verdict.Detail)
	}

	return verdict, err
}

// replay mounts a copy where nobody sees it. Sectors of 512 bytes serve whatever
// block size the volume has.
func (c *checking) replay(ctx context.Context, copied *os.File) (err error) {
	options, err := mount.ParseFlags(c.fs.ReplayFlags())
	if err != nil {
		return err
	}

	identity, err := loop.IdentityOf(copied)
	if err != nil {
		return err
	}

	device, err := c.service.loops.Attach(ctx, copied, loop.AttachOptions{
		Buffered: true, BlockSize: volume.SmallBlockSize, AutoClear: true, Held: true, Preferred: none,
	})
	if err != nil {
		return err
	}

	tree, err := mount.Mount(device.Path, c.fs.Name(), options)
	if err == nil {
		tree.Close()
	}

	// Only what is unmounted has been written.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachLimit)
	defer cancel()

	err = errors.Join(err, device.Close())

	// It clears itself, and then the number may be another program's at once.
	detached := c.service.loops.DetachImage(ending, device.Number, identity)
	if errors.Is(detached, loop.ErrOtherImage) {
		detached = nil
	}

	return errors.Join(err, detached)
}
