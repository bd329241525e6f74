package fsck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const (
	// detachTimeout bounds the wait for the loop device of a copy to be detached.
	detachTimeout = 10 * time.Second
	// anyNumber lets the kernel choose the loop device.
	anyNumber = -1
)

// errLogNotReplayed is returned for a copy whose log is dirty after its replay.
var errLogNotReplayed = errors.New("the log of a copy could not be replayed")

// imagePath returns the path of the volume's image. The tools read the image and not its
// loop device: a filesystem's writes bypass the page cache of its device.
func (r *run) imagePath() string { return r.pool.ObjectPath(imageOf(r.volumeID)) }

// imageOf is the volume in its pool: what is checked is an image.
func imageOf(id string) pool.Object { return pool.Object{ID: id, Backing: volume.BackingImage} }

// newCopy prepares a copy that is never committed: after a crash the next start removes it
// as a scratch object.
func (r *run) newCopy() (*pool.ImageCopy, error) {
	copied, err := r.pool.NewCopy(r.pool, imageOf(r.volumeID), imageOf(volume.NewID()), pool.CopyOptions{})
	if err != nil {
		return nil, err
	}

	image, _ := copied.Image()

	return image, nil
}

// examineCopy checks a copy, with its log replayed if necessary. A copy that the kernel
// refuses to mount as corrupted is damaged.
func (r *run) examineCopy(ctx context.Context, copied *pool.ImageCopy) (filesystem.Verdict, error) {
	verdict, err := filesystem.CheckReplayed(func() (filesystem.Verdict, error) {
		return r.fs.CheckReadOnly(ctx, copied.File().Name(), filesystem.ReadOnlyCheckOptions{})
	}, func() error { return r.replay(ctx, copied.File()) })

	if errors.Is(err, mount.ErrCorrupted) {
		return filesystem.Verdict{State: filesystem.Damaged, Detail: "a copy of it does not mount: " + err.Error()}, nil
	}

	if err != nil || verdict.State != filesystem.NeedsReplay {
		return verdict, err
	}

	return verdict, fmt.Errorf("%w: %s", errLogNotReplayed, verdict.Detail)
}

// replay mounts a copy, detached from the mount tree, so that the kernel replays its log.
// A device with sectors of 512 bytes mounts filesystems of any block size.
func (r *run) replay(ctx context.Context, copied *os.File) error {
	loops := r.checker.config.Loops

	device, err := loops.Attach(ctx, copied, loop.AttachOptions{
		Buffered: true, BlockSize: volume.SmallBlockSize, AutoClear: true, AlreadyLocked: true, PreferredNumber: anyNumber,
	})
	if err != nil {
		return err
	}

	err = mount.Replay(device.Path, r.fs.Name(), r.fs.ReplayFlags(), r.fs.FinishReplay)

	// The replay is written to the copy only when the copy is unmounted and detached.
	detachCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachTimeout)
	defer cancel()

	// AutoClear detaches it, after which another program may get the number at once.
	return errors.Join(err, device.Close(), loops.DetachSame(detachCtx, device.Status))
}
