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
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
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

// Capacity returns the size of the volume's image. Errors: ErrMissing.
func (i *Images) Capacity(id string) (bytes int64, limited bool, err error) {
	bytes, err = i.Size(Object{ID: id, Backing: volume.BackingImage})

	return bytes, true, err
}

// EnsureSize returns ErrTruncated for an image with fewer bytes. Errors: ErrMissing.
func (i *Images) EnsureSize(id string, bytes int64, _ bool) error {
	size, _, err := i.Capacity(id)
	if err == nil && size < bytes {
		err = fmt.Errorf("volume %s: %w", id, ErrTruncated)
	}

	return err
}

// SizeLimit is empty: an image ends at its size.
func (*Images) SizeLimit() volume.SizeLimit { return "" }

// CheckGrowth returns filesystem.ErrGrowLimit if the filesystem on an image cannot become as large.
// Errors: ErrMissing.
func (i *Images) CheckGrowth(object Object, bytes int64) error {
	image, err := i.open(object, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	if err := filesystem.CheckGrowth(image, bytes); err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}

	return nil
}

// MountsIn returns none: nothing can be mounted in a file.
func (*Images) MountsIn(Object) ([]mount.Point, error) { return nil, nil }

// CheckDetached is that of Backing, by the lock of the image.
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

// checkLength returns ErrTruncated if an image is shorter than least bytes.
func checkLength(image *os.File, least int64) error {
	info, err := image.Stat()
	if err != nil {
		return err
	}

	if info.Size() < least {
		return fmt.Errorf("%s has %d of %d bytes: %w", image.Name(), info.Size(), least, ErrTruncated)
	}

	return nil
}

// grow grows the file to at least size bytes, with all blocks allocated if thick. On an error the
// file keeps its size.
func grow(file *os.File, size int64, thick bool) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}

	if thick {
		return allocateHoles(file, info.Size(), max(size, info.Size()))
	}

	if info.Size() >= size {
		return nil
	}

	return file.Truncate(size)
}

// allocateHoles allocates all blocks of the first size bytes. It allocates holes only: XFS requires
// the whole range as free space, blocks that are allocated already included.
func allocateHoles(file *os.File, has, size int64) error {
	missing, err := unallocatedRanges(file, has, size)
	if err != nil {
		return err
	}

	for _, hole := range missing {
		err := eintr.Retry(func() error { return unix.Fallocate(int(file.Fd()), 0, hole.Offset, hole.Length) })
		if err != nil {
			// The filesystem may keep blocks behind the old end.
			return errors.Join(err, file.Truncate(has))
		}
	}

	return nil
}

// unallocatedRanges returns the ranges of the first size bytes without blocks. It returns ENOSPC if
// the pool has too little free space, before allocation starts.
func unallocatedRanges(file *os.File, has, size int64) ([]extent.Range, error) {
	missing, err := extent.Holes(file, has)
	if errors.Is(err, errors.ErrUnsupported) {
		// These filesystems (tmpfs, FUSE) have a fallocate that needs only the missing space.
		return []extent.Range{{Length: max(size, 1)}}, nil
	}

	if err != nil {
		return nil, err
	}

	if size > has {
		missing = append(missing, extent.Range{Offset: has, Length: size - has})
	}

	return missing, checkFree(file, missing)
}

// checkFree returns ENOSPC if the filesystem has less free space than the ranges need. btrfs counts
// released space as free only after the next commit, hence the syncfs.
func checkFree(file *os.File, ranges []extent.Range) error {
	var needed int64
	for _, each := range ranges {
		needed += each.Length
	}

	free, err := freeBytes(file)
	if err == nil && needed > free {
		if err = unix.Syncfs(int(file.Fd())); err == nil {
			free, err = freeBytes(file)
		}
	}

	if err != nil {
		return fmt.Errorf("probe the free space: %w", err)
	}

	if needed > free {
		return fmt.Errorf("%d bytes have to be allocated and %d are free: %w", needed, free, unix.ENOSPC)
	}

	return nil
}

// freeBytes includes the blocks reserved for root; fallocate decides whether the caller may use
// them.
func freeBytes(file *os.File) (int64, error) {
	var stat unix.Statfs_t

	err := eintr.Retry(func() error { return unix.Fstatfs(int(file.Fd()), &stat) })

	return blocksToBytes(stat.Bfree, int64(stat.Bsize)), err //nolint:unconvert // its type depends on the architecture
}
