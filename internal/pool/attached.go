package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

// detachedAttempts take a quarter of a second: the kernel releases the lock of an attachment a moment
// after the device is detached.
const detachedAttempts = 13

// CheckDetached returns ErrInUse if the volume's image is attached, here or on another node: also if
// nothing but a mount in another mount namespace keeps its device. A missing image is no error.
func (p *Pool) CheckDetached(ctx context.Context, id string) error {
	image, err := p.OpenImage(id, os.O_RDWR)
	if errors.Is(err, fs.ErrPermission) {
		// It is immutable. A client of NFS, which needs a writable file for a lock, cannot make it so.
		image, err = p.OpenImage(id, os.O_RDONLY)
	}

	if errors.Is(err, ErrMissing) {
		return nil
	}

	if err != nil {
		return err
	}
	defer unlock(image)

	err = fork.RetryWhile(ctx, unix.EWOULDBLOCK, detachedAttempts, func() error { return flock.TryLock(image, unix.LOCK_EX) })

	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: %w", image.Name(), ErrInUse)
	case err != nil && !flock.Unsupported(err):
		return lockError(image.Name(), err)
	default:
		return nil // without locks no image can be attached
	}
}
