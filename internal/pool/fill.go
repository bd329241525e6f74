package pool

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Filling replaces the image of a volume, as a whole or not at all, by one of the same size that its
// caller writes:
//
//	filling, err := images.BeginFill(id, thick)
//	defer func() { err = filling.Close(err) }()
//	// Check that filling.Old() may be replaced.
//	path, err := filling.Reserve()
//	// Write the new image at the path.
//	err = filling.Commit()
//
// A crash before Commit leaves the old image, so a half-made filesystem is never seen. See "Locks" in the
// package comment.
type Filling struct {
	images     *Images
	id         string
	thick      bool
	old, fresh *os.File
	// size is that of the old image when the new one got it.
	size int64
	// lent means that the old image has lent its blocks to the new one, done that the new one is in place.
	lent, done bool
}

// BeginFill locks the volume's image until Close, so that nothing is written between a check of it and its
// replacement. Thick allocates all blocks of the new image.
// Errors: ErrMissing, ErrInProgress, ErrInUse, ErrNoLocks, ErrNoSpace.
func (i *Images) BeginFill(id string, thick bool) (*Filling, error) {
	f := &Filling{images: i, id: id, thick: thick}

	// Keep it open until the end: the lock keeps RemoveStaleScratch, and other nodes, from the id.
	fresh, err := i.scratch.acquire(id)
	if err != nil {
		return nil, f.explain(err)
	}

	f.fresh = fresh
	if f.old, err = i.lock(id); err != nil {
		return nil, f.Close(err)
	}

	return f, nil
}

// Old is the image that may be replaced.
func (f *Filling) Old() *os.File { return f.old }

// Reserve gives the new image its size, its blocks if it is thick, and the owner of the old one, which must be
// blank, and returns its path.
func (f *Filling) Reserve() (path string, err error) {
	info, err := f.old.Stat()
	if err != nil {
		return "", err
	}

	if err := copyOwner(info, f.fresh); err != nil {
		return "", err
	}

	f.size = info.Size()
	f.lent, err = reserve(f.old, f.fresh, f.size, f.thick)

	return f.fresh.Name(), err
}

// Commit makes the new image durable and puts it in place.
func (f *Filling) Commit() error {
	if err := f.fresh.Sync(); err != nil {
		return err
	}

	// DeleteVolume takes no lock.
	if current, err := f.images.IsCurrent(f.id, f.old); err != nil || !current {
		return errors.Join(err, ErrInProgress)
	}

	if err := f.images.scratch.rename(f.images.root, f.id+layout.ImageSuffix); err != nil {
		return fmt.Errorf("put it in place: %w", err)
	}

	f.done = true

	return errors.Join(f.resize(), f.images.syncDirectory(f.images.root))
}

// Close ends the filling, which failed with err or did not. Unless the new image is in place, nothing is left
// of it, and the old one gets back the blocks that it has lent. Close returns err with the volume's name.
func (f *Filling) Close(err error) error {
	defer unlock(f.fresh)

	if f.lent && !f.done {
		err = errors.Join(err, f.fresh.Truncate(0), grow(f.old, f.size, true))
	}

	if f.old != nil {
		unlock(f.old)
	}

	err = f.explain(err)
	if !f.done {
		err = errors.Join(err, f.images.scratch.discard(f.id))
	}

	return err
}

func (f *Filling) explain(err error) error {
	if err == nil {
		return nil
	}

	return f.images.spaceError(fmt.Errorf("fill image of volume %s: %w", f.id, err))
}

// resize gives the new image the current size of the old one: an expansion that ended before
// the rename grew only the old image; later ones notice the rename (growOnce).
func (f *Filling) resize() error {
	now, err := f.old.Stat()
	if err != nil {
		return err
	}

	err = grow(f.fresh, now.Size(), f.thick)

	// Otherwise nothing was written: it was allocated already.
	if f.thick || now.Size() > f.size {
		f.images.resized.Store(f.id, time.Now())
	}

	if err != nil || now.Size() <= f.size {
		return err
	}

	return f.fresh.Sync()
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
