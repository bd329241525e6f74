package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// acquireScratch locks the scratch of id for this process until the returned file is closed, and
// removes what a crash left of it. It returns ErrInProgress if another process has it. The file is
// the image to be made, or stands for the directory of that id: not every filesystem can lock a
// directory between machines.
func (p *Pool) acquireScratch(id string) (*os.File, error) {
	for {
		file, err := p.lockScratch(id)
		if err != nil {
			return nil, err
		}

		claimed, err := p.claimScratch(id, file)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("scratch of %s: %w", id, err), file.Close())
		}

		if claimed {
			return file, nil
		}

		_ = file.Close()
	}
}

// claimScratch empties the scratch that file, which is locked, is of. It returns false if the file
// is an object in place: its previous owner has renamed it, or a power failure has kept both names.
func (p *Pool) claimScratch(id string, file *os.File) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, err
	}

	current, err := lstatNow(p.scratch, id+layout.ImageSuffix)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !os.SameFile(held, current):
		return false, nil
	case hasOtherName(held):
		return false, p.scratch.Remove(id + layout.ImageSuffix)
	default:
		return true, errors.Join(p.discardScratchDirectories(id), file.Truncate(0))
	}
}

// hasOtherName reports whether a file in scratch is in place, too. After a power failure a renamed
// file of btrfs may have both names: a sync of the new directory does not make the removal from the
// old one durable (Linux 6.18).
func hasOtherName(file fs.FileInfo) bool {
	stat, ok := file.Sys().(*syscall.Stat_t)

	return ok && stat.Nlink > 1
}

func (p *Pool) lockScratch(id string) (*os.File, error) {
	file, err := tree.OpenIn(p.scratch, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE, imageMode)
	if err != nil {
		return nil, fmt.Errorf("make scratch of %s: %w", id, err)
	}

	err = flock.TryLock(file, unix.LOCK_EX)

	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%s: %w", file.Name(), ErrInProgress)
	case err != nil:
		err = lockError(file.Name(), err)
	}

	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return file, nil
}

// discardScratch removes the scratch that this process has locked, also if the caller was
// cancelled. A directory is removed in the background.
func (p *Pool) discardScratch(id string) (err error) {
	defer errdefs.Wrapf(&err, "clear scratch of %s in pool %q", id, p.name)

	ctx := context.Background()

	moved, err := p.unlinkScratch(ctx, id)
	if err != nil || !moved {
		return err
	}

	return p.purgeOrSchedule(ctx, id)
}

// discardScratchDirectories discards the scratch directories of an id.
func (p *Pool) discardScratchDirectories(id string) error {
	ctx := context.Background()

	moved, err := p.moveScratchDirectories(ctx, id)
	if err != nil || !moved {
		return err
	}

	return p.purgeOrSchedule(ctx, id)
}

func (p *Pool) moveScratchDirectories(ctx context.Context, id string) (moved bool, err error) {
	for _, name := range []string{id, id + layout.LinksSuffix} {
		one, err := p.moveToRemoving(ctx, p.scratch, name, id)
		if err != nil {
			return false, err
		}

		moved = moved || one
	}

	return moved, nil
}

// unlinkScratch removes the scratch of an id. It returns true if a directory remains for purge. The
// lock file goes last: scratch without it could not be locked.
func (p *Pool) unlinkScratch(ctx context.Context, id string) (moved bool, err error) {
	moved, err = p.moveScratchDirectories(ctx, id)
	if err != nil {
		return false, err
	}

	if err := p.scratch.Remove(id + layout.ImageSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}

	return moved, nil
}

// RemoveStaleScratchOf removes what a crash left of an object in scratch. It returns false while
// another process is making the object.
func (p *Pool) RemoveStaleScratchOf(id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}

	file, err := p.acquireScratch(id)
	if errors.Is(err, ErrInProgress) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("clear scratch of pool %q: %w", p.name, err)
	}

	return true, errors.Join(p.discardScratch(id), file.Close())
}

// RemoveStaleScratch removes what a crash left in scratch, except objects that another process is
// making, and the quotas of directories that do not exist any more.
func (p *Pool) RemoveStaleScratch(ctx context.Context) error {
	clearOne := func(id string) error {
		_, err := p.RemoveStaleScratchOf(id)

		return err
	}

	// The lock of a directory is made before it and goes after it, but a power
	// failure may have kept only the directory.
	return errors.Join(listIDs(ctx, p.scratch, layout.ImageSuffix, clearOne), listIDs(ctx, p.scratch, "", clearOne),
		p.quotas.RemoveStale(ctx))
}
