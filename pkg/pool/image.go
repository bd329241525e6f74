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
)

// EnsureImage makes sure that the volume has an image of at least size bytes.
// A thick image has all its space when EnsureImage returns, durably; a thin one
// is sparse, and its name may be lost in a power failure until SyncImage.
// Errors: ErrNoSpace.
func (p *Pool) EnsureImage(id string, size int64, thick bool) error {
	if err := checkID(id); err != nil {
		return err
	}

	file, err := openIn(p.images, id+ImageSuffix, os.O_RDWR|os.O_CREATE, imageMode)
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

// GrowImage makes the volume's image at least size bytes large. Errors:
// ErrMissing, ErrNoSpace.
func (p *Pool) GrowImage(id string, size int64, thick bool) error {
	for {
		current, err := p.growOnce(id, size, thick)
		if err != nil || current {
			return err
		}
	}
}

// SizedAt returns when this process last tried to make the volume's image larger,
// or made sure that one it has filled has all its space; zero for never. Whoever
// watches images sees that as a write, also where it has failed.
func (p *Pool) SizedAt(id string) time.Time {
	at, _ := p.sized.Load(id)
	sized, _ := at.(time.Time)

	return sized
}

// growOnce says whether the image that it has grown still is the volume's:
// another process may have filled and replaced it meanwhile (FillImage).
func (p *Pool) growOnce(id string, size int64, thick bool) (bool, error) {
	file, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer file.Close()

	err = grow(file, size, thick)
	p.sized.Store(id, time.Now())

	if err != nil {
		return false, p.spaceError(fmt.Errorf("grow image of volume %s: %w", id, err))
	}

	// The new size is about to be acknowledged.
	if err := file.Sync(); err != nil {
		return false, p.spaceError(fmt.Errorf("sync image of volume %s: %w", id, err))
	}

	return p.named(id, file)
}

// SyncImage makes the image's name and size survive a power failure. Errors:
// ErrMissing.
func (p *Pool) SyncImage(id string) error {
	file, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()

	return p.syncImage(id, file)
}

// OpenImage opens the volume's image, never through a symlink. flag is
// os.O_RDONLY or os.O_RDWR. Errors: ErrMissing.
func (p *Pool) OpenImage(id string, flag int) (*os.File, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}

	file, err := openIn(p.images, id+ImageSuffix, flag, 0)
	if err != nil {
		return nil, p.missing("volume "+id, err)
	}

	return file, nil
}

// FillImage replaces the volume's image, as a whole or not at all, by one of
// the same size that fill has written. It is meant for an image that holds
// nothing yet: a crash while fill runs leaves the old, empty image, so a
// half-made filesystem is never seen. Errors: ErrMissing, ErrNoSpace.
func (p *Pool) FillImage(ctx context.Context, id string, thick bool, fill func(ctx context.Context, path string) error) error {
	old, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return err
	}
	defer old.Close()

	info, err := old.Stat()
	if err != nil {
		return fmt.Errorf("size of the image of volume %s: %w", id, err)
	}

	name := id + ImageSuffix

	// Open until the end: it tells ClearScratch that this is no leftover.
	fresh, err := p.claim(id)
	if err != nil {
		return p.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err))
	}
	defer fresh.Close()

	if err = keepOwner(info, fresh); err == nil {
		err = p.fillScratch(ctx, name, old, fresh, info.Size(), thick, fill)
	}

	if err != nil {
		return errors.Join(p.spaceError(fmt.Errorf("fill image of volume %s: %w", id, err)), p.scratch.Remove(name))
	}

	if err := os.Rename(filepath.Join(p.path, scratchName, name), filepath.Join(p.path, imagesName, name)); err != nil {
		return fmt.Errorf("put the filled image of volume %s in place: %w", id, err)
	}

	// Whoever grew the old image until now did not see the new one; whoever
	// does from now on will notice (growOnce).
	now, err := old.Stat()
	if err == nil {
		err = grow(fresh, now.Size(), thick)

		// Else it had all, and nothing was written.
		if thick || now.Size() > info.Size() {
			p.sized.Store(id, time.Now())
		}
	}

	if err != nil {
		return p.spaceError(fmt.Errorf("size the filled image of volume %s: %w", id, err))
	}

	return p.syncDirectory(p.images)
}

// keepOwner gives fresh to whom the old image belongs: a controller without
// privilege still has to grow what a node, as root, has filled.
func keepOwner(old os.FileInfo, fresh *os.File) error {
	owner, ok := old.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}

	return fresh.Chown(int(owner.Uid), int(owner.Gid)) //nolint:wrapcheck // the caller names the volume
}

func (p *Pool) fillScratch(ctx context.Context, name string, old, fresh *os.File, size int64, thick bool,
	fill func(ctx context.Context, path string) error,
) error {
	err := grow(fresh, size, thick)
	if thick && errors.Is(err, unix.ENOSPC) {
		// The old image holds nothing but the reservation that the new one is
		// to take over.
		if err = errors.Join(old.Truncate(0), old.Truncate(size)); err == nil {
			err = grow(fresh, size, thick)
		}
	}

	if err != nil {
		return err
	}

	if err := fill(ctx, filepath.Join(p.path, scratchName, name)); err != nil {
		return err
	}

	return fresh.Sync() //nolint:wrapcheck // the caller names the volume
}

// named says whether file is still what the volume's name stands for.
func (p *Pool) named(id string, file *os.File) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("image of volume %s: %w", id, err)
	}

	current, err := p.images.Lstat(id + ImageSuffix)
	if err != nil {
		return false, p.missing("volume "+id, err)
	}

	return os.SameFile(held, current), nil
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

// grow makes file at least size bytes large, with all its space if thick.
func grow(file *os.File, size int64, thick bool) error {
	info, err := file.Stat()
	if err != nil {
		return err //nolint:wrapcheck // the callers name the volume
	}

	if info.Size() > size {
		size = info.Size()
	}

	if thick {
		// On a failure the filesystem may keep what it has reserved so far:
		// what the file did not have before is given back.
		if err := unix.Fallocate(int(file.Fd()), 0, 0, max(size, 1)); err != nil {
			return errors.Join(err, file.Truncate(info.Size()))
		}

		return nil
	}

	if info.Size() == size {
		return nil
	}

	return file.Truncate(size) //nolint:wrapcheck // the callers name the volume
}
