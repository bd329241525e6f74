package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/pool/tree"
)

// claim makes the names that belong to id in the scratch room be this process'
// until the returned file is closed: what another is making right now is
// ErrInProgress, what a crash left is cleared. The file is the image that is to be
// made, or just stands for the directory of that id: not every filesystem lets
// several machines lock a directory.
func (p *Pool) acquireScratch(id string) (*os.File, error) {
	for {
		file, err := p.lockScratch(id)
		if err != nil {
			return nil, err
		}

		held, err := file.Stat()
		if err == nil {
			// Who had the lock before may have given the file away with it.
			current, lookup := p.scratch.Lstat(id + layout.ImageSuffix)
			if lookup != nil || !os.SameFile(held, current) {
				_ = file.Close()

				continue
			}

			err = errors.Join(p.discardScratchDirectories(id), file.Truncate(0))
		}

		if err != nil {
			return nil, errors.Join(fmt.Errorf("scratch of %s: %w", id, err), file.Close())
		}

		return file, nil
	}
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

// discardScratch removes what is claimed, whether or not its caller has given up. A
// directory is removed in the background.
func (p *Pool) discardScratch(id string) error {
	moved, err := p.unlinkScratch(id)
	if err == nil && moved {
		err = p.purgeOrSchedule(context.Background(), id)
	}

	if err != nil {
		return fmt.Errorf("clear scratch of %s in pool %q: %w", id, p.name, err)
	}

	return nil
}

// discardScratchDirectories discards the scratch directories of an id.
func (p *Pool) discardScratchDirectories(id string) error {
	moved, err := p.moveScratchDirectories(id)
	if err == nil && moved {
		err = p.purgeOrSchedule(context.Background(), id)
	}

	return err
}

func (p *Pool) moveScratchDirectories(id string) (moved bool, err error) {
	for _, name := range []string{id, id + layout.LinksSuffix} {
		one, err := p.moveToRemoving(p.scratch, name, id)
		if err != nil {
			return false, err
		}

		moved = moved || one
	}

	return moved, nil
}

// unclaim removes the scratch of an id, and says whether something of it is left
// to be purged. The name that is locked goes last: as long as anything is there,
// it can be claimed.
func (p *Pool) unlinkScratch(id string) (moved bool, err error) {
	moved, err = p.moveScratchDirectories(id)
	if err != nil {
		return false, err
	}

	if err := p.scratch.Remove(id + layout.ImageSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err //nolint:wrapcheck // the callers name the object
	}

	return moved, nil
}

// RemoveStaleScratchOf removes what a crash left half-made under an id. It says whether
// it did: not while another process is making it.
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

// RemoveStaleScratch removes what a crash left half-made, but nothing that another
// process is making right now.
func (p *Pool) RemoveStaleScratch(ctx context.Context) error {
	clearOne := func(id string) error {
		_, err := p.RemoveStaleScratchOf(id)

		return err
	}

	// The lock of a directory is made before it and goes after it, but a power
	// failure may have kept only the directory.
	return errors.Join(listIDs(ctx, p.scratch, layout.ImageSuffix, clearOne), listIDs(ctx, p.scratch, "", clearOne))
}
