package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
)

// Identity says which file it is, whatever its path: device and inode as fstat
// gives them.
type Identity struct {
	Device, Inode uint64
}

// IdentityOf returns the identity of an open file.
func IdentityOf(file *os.File) (Identity, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return Identity{}, fmt.Errorf("stat %s: %w", file.Name(), err)
	}

	return Identity{Device: stat.Dev, Inode: stat.Ino}, nil
}

// image is an own open file of the image: the loop device will keep it, so it
// must share neither lock nor flags with the caller's.
type image struct {
	file     *os.File
	identity Identity
}

func openImage(source *os.File, readOnly bool) (*image, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", source.Name(), err)
	}

	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("attach %s: %w", source.Name(), ErrNotImage)
	}

	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}

	// Through /proc it is the very same file, even if it was renamed, deleted,
	// or opened with O_PATH.
	descriptor, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s again to attach it: %w", source.Name(), err)
	}

	return &image{
		file:     os.NewFile(uintptr(descriptor), source.Name()),
		identity: Identity{Device: stat.Dev, Inode: stat.Ino},
	}, nil
}

// lock takes the image for one attachment; false means that another holds it.
// Trying the exclusive lock first shows a reader that there is no other attachment to
// find. Readers then share: a read-only image may be attached on several
// nodes.
//
// NFS locks exclusively only what is open for writing (EBADF). There false also means that
// the caller has to find an attachment, or share.
func (i *image) lock(readOnly bool) (bool, error) {
	free, err := i.tryFlock(unix.LOCK_EX)
	if readOnly && errors.Is(err, unix.EBADF) {
		return false, nil
	}

	if !free || err != nil || !readOnly {
		return free, err
	}

	return i.tryFlock(unix.LOCK_SH)
}

func (i *image) tryFlock(how int) (bool, error) {
	err := flock.TryLock(i.file, how)

	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case flock.Unsupported(err):
		return false, fmt.Errorf("lock %s: %w: %w", i.file.Name(), ErrNoLocks, err)
	default:
		return false, fmt.Errorf("lock %s: %w", i.file.Name(), err)
	}
}

// backoff awaits what the kernel announces by no event that every container can
// receive: the end of a detach, and the end of another process's attach.
type backoff struct {
	pause, longest time.Duration
}

func newBackoff() *backoff {
	return &backoff{pause: time.Millisecond / 4, longest: 32 * time.Millisecond}
}

func (b *backoff) wait(ctx context.Context) error {
	ctxread.Pause(ctx, b.pause)
	b.pause = min(2*b.pause, b.longest)

	return context.Cause(ctx)
}
