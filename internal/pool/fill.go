package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// FillOptions describe how Fill replaces an image.
type FillOptions struct {
	// Thick allocates all blocks of the new image.
	Thick bool
	// Blank reports whether the image may be replaced. It runs while the image is
	// locked, so that nothing can be written between the check and the replacement.
	Blank func(image *os.File) (bool, error)
	// Fill writes the new image, a file of the same size, at path.
	Fill func(ctx context.Context, path string) error
}

// Fill replaces the volume's image, as a whole or not at all, by one of
// the same size that Fill has written, and reports whether it did: an image that
// Blank reports false for stays. A crash while Fill runs leaves the old image, so
// a half-made filesystem is never seen. See "Locks" in the package comment.
// Errors: ErrMissing, ErrInProgress, ErrInUse, ErrNoLocks, ErrNoSpace.
func (i *Images) Fill(ctx context.Context, id string, filling FillOptions) (bool, error) {
	// Keep it open until the end: the lock keeps RemoveStaleScratch, and other nodes, from the id.
	fresh, err := i.scratch.acquire(id)
	if err != nil {
		return false, i.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err))
	}
	defer unlock(fresh)

	filled, err := i.fillClaimed(ctx, id, fresh, filling)
	if err != nil {
		err = i.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err))
	}

	if !filled {
		err = errors.Join(err, i.scratch.discard(id))
	}

	return filled, err
}

// fillClaimed is Fill once the id is claimed. It returns true from the moment
// that the new image is in place.
func (i *Images) fillClaimed(ctx context.Context, id string, fresh *os.File, filling FillOptions) (bool, error) {
	old, err := i.lock(id)
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

	if err := i.fillScratch(ctx, old, fresh, info.Size(), filling); err != nil {
		return false, err
	}

	// DeleteVolume takes no lock.
	if current, err := i.IsCurrent(id, old); err != nil || !current {
		return false, errors.Join(err, ErrInProgress)
	}

	if err := i.scratch.rename(i.root, id+layout.ImageSuffix); err != nil {
		return false, fmt.Errorf("put it in place: %w", err)
	}

	return true, errors.Join(i.resizeFilled(id, old, fresh, info.Size(), filling.Thick), i.syncDirectory(i.root))
}

// resizeFilled gives the new image the current size of the old one: an expansion that ended before
// the rename grew only the old image; later ones notice the rename (growOnce).
func (i *Images) resizeFilled(id string, old, fresh *os.File, size int64, thick bool) error {
	now, err := old.Stat()
	if err != nil {
		return err
	}

	err = grow(fresh, now.Size(), thick)

	// Otherwise nothing was written: it was allocated already.
	if thick || now.Size() > size {
		i.resized.Store(id, time.Now())
	}

	if err != nil || now.Size() <= size {
		return err
	}

	return fresh.Sync()
}

// copyOwner gives the new image the owner of the old one: an unprivileged controller must be able
// to grow what a node, as root, has filled.
func copyOwner(old os.FileInfo, fresh *os.File) error {
	owner := statOf(old)
	if int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}

	return fresh.Chown(int(owner.Uid), int(owner.Gid))
}

// fillScratch writes the new image into scratch. If that fails, a reservation that was taken from the
// old image is given back.
func (i *Images) fillScratch(ctx context.Context, old, fresh *os.File, size int64, filling FillOptions) (err error) {
	taken, err := reserve(old, fresh, size, filling.Thick)

	defer func() {
		if err != nil && taken {
			err = errors.Join(err, fresh.Truncate(0), grow(old, size, true))
		}
	}()

	if err != nil {
		return err
	}

	if err := filling.Fill(ctx, fresh.Name()); err != nil {
		return err
	}

	return fresh.Sync()
}

// reserve gives the new image its size and, if it is thick, all of its blocks. It takes those of the old
// image, and reports that, if the pool has too few for both.
func reserve(old, fresh *os.File, size int64, thick bool) (taken bool, err error) {
	err = grow(fresh, size, thick)
	if !thick || !errors.Is(err, unix.ENOSPC) {
		return false, err
	}

	// The old image is blank and locked: its only content is the reservation that the new one
	// takes over. Its size stays, because an expansion may be changing it.
	err = eintr.Retry(func() error {
		return unix.Fallocate(int(old.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
	})
	if err == nil {
		err = grow(fresh, size, true)
	}

	return true, err
}
