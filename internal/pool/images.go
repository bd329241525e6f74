package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// detachedAttempts take a quarter of a second: the kernel releases the lock of an attachment a moment
// after the device is detached.
const detachedAttempts = 13

// Images are the volumes of a pool that are images.
type Images struct {
	objects

	// root is the directory with the images.
	root *os.Root
	// scratch is where an image is filled.
	scratch *scratch
	// reflinks is true if images share blocks with their copies.
	reflinks bool
	// resized has the times of LastResized, by volume.
	resized sync.Map
}

// Reflinks reports whether images are copied at one point in time: whether the filesystem can share
// blocks between files (FICLONE).
func (i *Images) Reflinks() bool { return i.reflinks }

// Create creates or grows the volume's image to at least size bytes. A thick image is
// allocated and synced when Create returns; the name of a thin one is durable only after
// Sync. Errors: ErrNoSpace.
func (i *Images) Create(id string, size int64, thick bool) error {
	if err := checkID(id); err != nil {
		return err
	}

	file, err := tree.OpenIn(i.root, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE, imageMode)
	if err != nil {
		return i.spaceError(fmt.Errorf("make image of volume %s: %w", id, err))
	}
	defer file.Close()

	if err := grow(file, size, thick); err != nil {
		return i.spaceError(fmt.Errorf("size image of volume %s: %w", id, err))
	}

	if thick {
		return i.sync(id, file)
	}

	return nil
}

// Grow grows the volume's image. Errors: ErrMissing, ErrTruncated, ErrNoSpace.
func (i *Images) Grow(id string, growth Growth) error {
	for {
		current, err := i.growOnce(id, growth)
		if err != nil || current {
			return err
		}
	}
}

// LastResized returns when this process last tried to grow the volume's image, or allocated a
// filled one; zero for never. A watcher of images sees these as writes.
func (i *Images) LastResized(id string) time.Time {
	at, _ := i.resized.Load(id)
	sized, _ := at.(time.Time)

	return sized
}

// growOnce reports whether the image that it has grown is still the volume's: another process may
// have replaced it meanwhile (Filling).
func (i *Images) growOnce(id string, growth Growth) (bool, error) {
	file, err := i.Open(id, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer file.Close()

	if err := checkLength(file, growth.From); err != nil {
		return false, fmt.Errorf("grow image of volume %s: %w", id, err)
	}

	err = grow(file, growth.To, growth.Thick)
	i.resized.Store(id, time.Now())

	if err != nil {
		return false, i.spaceError(fmt.Errorf("grow image of volume %s: %w", id, err))
	}

	// The caller is about to acknowledge the new size.
	if err := file.Sync(); err != nil {
		return false, i.spaceError(fmt.Errorf("sync image of volume %s: %w", id, err))
	}

	return i.IsCurrent(id, file)
}

// Sync makes the image's name and size durable. Errors: ErrMissing.
func (i *Images) Sync(id string) error {
	file, err := i.Open(id, os.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()

	return i.sync(id, file)
}

// Open opens the volume's image without following a symlink. flag is os.O_RDONLY or os.O_RDWR.
// Errors: ErrMissing.
func (i *Images) Open(id string, flag int) (*os.File, error) {
	return i.open(Object{ID: id, Backing: volume.BackingImage}, flag)
}

// unlock releases the lock and closes the file, which is synced where it was written. It unlocks
// explicitly because the image is about to be attached (see flock.Unlock).
func unlock(file *os.File) {
	_ = flock.Unlock(file)
	_ = file.Close()
}

// lock opens the volume's image and locks it exclusively. Errors:
// ErrMissing, ErrInUse, ErrNoLocks.
func (i *Images) lock(id string) (*os.File, error) {
	for {
		image, err := i.Open(id, os.O_RDWR)
		if err != nil {
			return nil, err
		}

		current := false

		err = lockError(image.Name(), flock.Lock(image, unix.LOCK_EX), fmt.Errorf("%w; detach it there first", ErrInUse))
		if err == nil {
			current, err = i.IsCurrent(id, image)
		}

		if current {
			return image, nil
		}

		unlock(image)

		if err != nil {
			return nil, err
		}
	}
}

// IsCurrent reports whether the open file is still the volume's image: it is not once
// another process has replaced or removed it. Errors: ErrMissing.
func (i *Images) IsCurrent(id string, file *os.File) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("image of volume %s: %w", id, err)
	}

	current, err := lstatNow(i.root, id+layout.ImageSuffix)
	if err != nil {
		return false, i.notFoundError("volume "+id, err)
	}

	return os.SameFile(held, current), nil
}

// lstatNow is Lstat without what a network filesystem has cached of the directory: an NFS client
// otherwise sees another client's rename after up to a minute (acdirmax).
func lstatNow(directory *os.Root, name string) (os.FileInfo, error) {
	var attributes unix.Statx_t

	err := tree.InDirectory(directory, func(opened *os.File) error {
		return eintr.Retry(func() error {
			return unix.Statx(int(opened.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_MTIME|unix.STATX_CTIME, &attributes)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", directory.Name(), err)
	}

	return directory.Lstat(name)
}

func (i *Images) sync(id string, file *os.File) error {
	if err := file.Sync(); err != nil {
		return i.spaceError(fmt.Errorf("sync image of volume %s: %w", id, err))
	}

	return i.syncDirectory(i.root)
}

// CheckDetached returns ErrInUse if the volume's image is attached, here or on another node: also if
// nothing but a mount in another mount namespace keeps its device. A missing image is no error.
func (i *Images) CheckDetached(ctx context.Context, id string) error {
	image, err := i.Open(id, os.O_RDWR)
	if errors.Is(err, fs.ErrPermission) {
		// It is immutable. A client of NFS, which needs a writable file for a lock, cannot make it so.
		image, err = i.Open(id, os.O_RDONLY)
	}

	if errors.Is(err, ErrMissing) {
		return nil
	}

	if err != nil {
		return err
	}
	defer unlock(image)

	err = fork.RetryWhile(ctx, unix.EWOULDBLOCK, detachedAttempts, func() error { return flock.TryLock(image, unix.LOCK_EX) })

	if flock.Unsupported(err) {
		return nil // without locks no image can be attached
	}

	return lockError(image.Name(), err, ErrInUse)
}

// AllocatedBytes is that of Backing.
func (i *Images) AllocatedBytes(_ context.Context, id string) (int64, error) {
	info, err := i.Stat(id, volume.BackingImage)
	if err != nil {
		return 0, err
	}

	return allocatedBytes(info), nil
}

func (i *Images) forget(id string) { i.resized.Delete(id) }

// removeEmpty removes an image without blocks that is not attached.
func (i *Images) removeEmpty(_ context.Context, id string) (bool, error) {
	info, err := i.root.Lstat(id + layout.ImageSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}

	if err != nil || !info.Mode().IsRegular() || allocatedBytes(info) > 0 {
		return false, err
	}

	return i.removeUnused(id)
}

// removeUnused removes an empty image unless it is locked: an attached image is
// (internal/linux/loop), and may be written at any time.
func (i *Images) removeUnused(id string) (bool, error) {
	image, err := i.Open(id, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer image.Close()

	err = flock.TryLock(image, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}

	if err != nil {
		return false, lockError(image.Name(), err, ErrInUse)
	}

	// It could be written before it was locked.
	info, err := image.Stat()
	if err != nil || allocatedBytes(info) > 0 {
		return false, err
	}

	return true, i.root.Remove(id + layout.ImageSuffix)
}
