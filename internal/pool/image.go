package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// EnsureImage creates or grows the volume's image to at least size bytes. A thick image is
// allocated and synced when EnsureImage returns; the name of a thin one is durable only after
// SyncImage. Errors: ErrNoSpace.
func (p *Pool) EnsureImage(id string, size int64, thick bool) error {
	if err := checkID(id); err != nil {
		return err
	}

	file, err := tree.OpenIn(p.images, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE, imageMode)
	if err != nil {
		return p.spaceError(fmt.Errorf("make image of volume %s: %w", id, err))
	}
	defer file.Close()

	if err := grow(file, size, thick); err != nil {
		return p.spaceError(fmt.Errorf("size image of volume %s: %w", id, err))
	}

	if !thick {
		return nil
	}

	return p.syncImage(id, file)
}

// Growth describes how GrowImage grows an image.
type Growth struct {
	// From is what the image has at least. One that is shorter was truncated, and stays as it is.
	From int64
	// To is what it has at least afterwards.
	To int64
	// Thick allocates all of its blocks.
	Thick bool
}

// GrowImage grows the volume's image. Errors: ErrMissing, ErrTruncated, ErrNoSpace.
func (p *Pool) GrowImage(id string, growth Growth) error {
	for {
		current, err := p.growOnce(id, growth)
		if err != nil || current {
			return err
		}
	}
}

// LastResized returns when this process last tried to grow the volume's image, or allocated a
// filled one; zero for never. A watcher of images sees these as writes.
func (p *Pool) LastResized(id string) time.Time {
	at, _ := p.resized.Load(id)
	sized, _ := at.(time.Time)

	return sized
}

// growOnce reports whether the image that it has grown is still the volume's: another process may
// have replaced it meanwhile (FillImage).
func (p *Pool) growOnce(id string, growth Growth) (bool, error) {
	file, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer file.Close()

	if err := checkLength(file, growth.From); err != nil {
		return false, fmt.Errorf("grow image of volume %s: %w", id, err)
	}

	err = grow(file, growth.To, growth.Thick)
	p.resized.Store(id, time.Now())

	if err != nil {
		return false, p.spaceError(fmt.Errorf("grow image of volume %s: %w", id, err))
	}

	// The caller is about to acknowledge the new size.
	if err := file.Sync(); err != nil {
		return false, p.spaceError(fmt.Errorf("sync image of volume %s: %w", id, err))
	}

	return p.IsCurrentImage(id, file)
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

// SyncImage makes the image's name and size durable. Errors: ErrMissing.
func (p *Pool) SyncImage(id string) error {
	file, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()

	return p.syncImage(id, file)
}

// OpenImage opens the volume's image without following a symlink. flag is os.O_RDONLY or os.O_RDWR.
// Errors: ErrMissing.
func (p *Pool) OpenImage(id string, flag int) (*os.File, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}

	file, err := tree.OpenIn(p.images, id+layout.ImageSuffix, flag, 0)
	if err != nil {
		return nil, p.notFoundError("volume "+id, err)
	}

	return file, nil
}

// FillOptions describe how FillImage replaces an image.
type FillOptions struct {
	// Thick allocates all blocks of the new image.
	Thick bool
	// Blank reports whether the image may be replaced. It runs while the image is
	// locked, so that nothing can be written between the check and the replacement.
	Blank func(image *os.File) (bool, error)
	// Fill writes the new image, a file of the same size, at path.
	Fill func(ctx context.Context, path string) error
}

// FillImage replaces the volume's image, as a whole or not at all, by one of
// the same size that Fill has written, and reports whether it did: an image that
// Blank reports false for stays. A crash while Fill runs leaves the old image, so
// a half-made filesystem is never seen. See "Locks" in the package comment.
// Errors: ErrMissing, ErrInProgress, ErrInUse, ErrNoLocks, ErrNoSpace.
func (p *Pool) FillImage(ctx context.Context, id string, filling FillOptions) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}

	// Keep it open until the end: the lock keeps RemoveStaleScratch, and other nodes, from the id.
	fresh, err := p.acquireScratch(id)
	if err != nil {
		return false, p.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err))
	}
	defer unlock(fresh)

	filled, err := p.fillClaimed(ctx, id, fresh, filling)
	if err != nil {
		err = p.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err))
	}

	if !filled {
		err = errors.Join(err, p.discardScratch(id))
	}

	return filled, err
}

// fillClaimed is FillImage once the id is claimed. It returns true from the moment
// that the new image is in place.
func (p *Pool) fillClaimed(ctx context.Context, id string, fresh *os.File, filling FillOptions) (bool, error) {
	old, err := p.lockImage(id)
	if err != nil {
		return false, err
	}
	defer unlock(old)

	blank, err := filling.Blank(old)
	if err != nil || !blank {
		return false, err
	}

	info, err := old.Stat()
	if err != nil {
		return false, err
	}

	if err := copyOwner(info, fresh); err != nil {
		return false, err
	}

	if err := p.fillScratch(ctx, id, old, fresh, info.Size(), filling); err != nil {
		return false, err
	}

	// DeleteVolume takes no lock.
	if current, err := p.IsCurrentImage(id, old); err != nil || !current {
		return false, errors.Join(err, ErrInProgress)
	}

	name := id + layout.ImageSuffix
	if err := os.Rename(filepath.Join(p.path, layout.Scratch, name), filepath.Join(p.path, layout.Images, name)); err != nil {
		return false, fmt.Errorf("put it in place: %w", err)
	}

	return true, errors.Join(p.resizeFilled(id, old, fresh, info.Size(), filling.Thick), p.syncDirectory(p.images))
}

// resizeFilled gives the new image the current size of the old one: an expansion that ended before
// the rename grew only the old image; later ones notice the rename (growOnce).
func (p *Pool) resizeFilled(id string, old, fresh *os.File, size int64, thick bool) error {
	now, err := old.Stat()
	if err != nil {
		return err
	}

	err = grow(fresh, now.Size(), thick)

	// Otherwise nothing was written: it was allocated already.
	if thick || now.Size() > size {
		p.resized.Store(id, time.Now())
	}

	if err != nil || now.Size() <= size {
		return err
	}

	return fresh.Sync()
}

// copyOwner gives the new image the owner of the old one: an unprivileged controller must be able
// to grow what a node, as root, has filled.
func copyOwner(old os.FileInfo, fresh *os.File) error {
	owner, ok := old.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}

	return fresh.Chown(int(owner.Uid), int(owner.Gid))
}

func (p *Pool) fillScratch(ctx context.Context, id string, old, fresh *os.File, size int64, filling FillOptions) (err error) {
	err = grow(fresh, size, filling.Thick)
	if filling.Thick && errors.Is(err, unix.ENOSPC) {
		defer func() {
			if err != nil {
				err = errors.Join(err, fresh.Truncate(0), grow(old, size, true))
			}
		}()

		// The old image is blank and locked: its only content is the reservation that the new one
		// takes over. Its size stays, because an expansion may be changing it.
		if err = punchHole(old, size); err == nil {
			err = grow(fresh, size, true)
		}
	}

	if err != nil {
		return err
	}

	if err := filling.Fill(ctx, filepath.Join(p.path, layout.Scratch, id+layout.ImageSuffix)); err != nil {
		return err
	}

	return fresh.Sync()
}

// unlock releases the lock and closes the file, which is synced where it was written. It unlocks
// explicitly because the image is about to be attached (see flock.Unlock).
func unlock(file *os.File) {
	_ = flock.Unlock(file)
	_ = file.Close()
}

// punchHole deallocates the first size bytes of the file.
func punchHole(file *os.File, size int64) error {
	return eintr.Retry(func() error {
		return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
	})
}

// lockImage opens the volume's image and locks it exclusively. Errors:
// ErrMissing, ErrInUse, ErrNoLocks.
func (p *Pool) lockImage(id string) (*os.File, error) {
	for {
		image, err := p.OpenImage(id, os.O_RDWR)
		if err != nil {
			return nil, err
		}

		err = flock.Lock(image, unix.LOCK_EX)

		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			err = fmt.Errorf("%s: %w; detach it there first", image.Name(), ErrInUse)
		case err != nil:
			err = lockError(image.Name(), err)
		}

		current := false
		if err == nil {
			current, err = p.IsCurrentImage(id, image)
		}

		if current && err == nil {
			return image, nil
		}

		unlock(image)

		if err != nil {
			return nil, err
		}
	}
}

// IsCurrentImage reports whether the open file is still the volume's image: it is not once
// another process has replaced or removed it. Errors: ErrMissing.
func (p *Pool) IsCurrentImage(id string, file *os.File) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("image of volume %s: %w", id, err)
	}

	current, err := lstatNow(p.images, id+layout.ImageSuffix)
	if err != nil {
		return false, p.notFoundError("volume "+id, err)
	}

	return os.SameFile(held, current), nil
}

// lstatNow is Lstat without what a network filesystem has cached of the directory: an NFS client
// otherwise sees another client's rename after up to a minute (acdirmax).
func lstatNow(directory *os.Root, name string) (os.FileInfo, error) {
	opened, err := directory.Open(".")
	if err != nil {
		return nil, err
	}
	defer opened.Close()

	var attributes unix.Statx_t

	err = eintr.Retry(func() error {
		return unix.Statx(int(opened.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_MTIME|unix.STATX_CTIME, &attributes)
	})
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", directory.Name(), err)
	}

	return directory.Lstat(name)
}

func (p *Pool) syncImage(id string, file *os.File) error {
	if err := file.Sync(); err != nil {
		return p.spaceError(fmt.Errorf("sync image of volume %s: %w", id, err))
	}

	return p.syncDirectory(p.images)
}

func (p *Pool) syncDirectory(root *os.Root) error {
	directory, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("open %s: %w", root.Name(), err)
	}
	defer directory.Close()

	if err := directory.Sync(); err != nil {
		return p.spaceError(fmt.Errorf("sync %s: %w", root.Name(), err))
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
