package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// scratch is where objects are made. An object in it is locked by the process that makes it.
type scratch struct {
	label

	// root is the directory of that name.
	root *os.Root
	// trash removes what is discarded.
	trash *trash
}

// acquire locks the scratch of id for this process until the returned file is closed, and
// removes what a crash left of it. It returns ErrInProgress if another process has it. The file is
// the image to be made, or stands for the directory of that id: not every filesystem can lock a
// directory between machines.
func (s *scratch) acquire(id string) (*os.File, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}

	for {
		file, err := s.lock(id)
		if err != nil {
			return nil, err
		}

		claimed, err := s.claim(id, file)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("scratch of %s: %w", id, err), file.Close())
		}

		if claimed {
			return file, nil
		}

		_ = file.Close()
	}
}

// claim empties the scratch that file, which is locked, is of. It returns false if the file
// is an object in place: its previous owner has renamed it, or a power failure has kept both names.
func (s *scratch) claim(id string, file *os.File) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, err
	}

	current, err := lstatNow(s.root, id+layout.ImageSuffix)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !os.SameFile(held, current):
		return false, nil
	case statOf(held).Nlink > 1:
		// After a power failure a renamed file of btrfs may have both names: a sync of the new directory does
		// not make the removal from the old one durable (Linux 6.18).
		return false, s.root.Remove(id + layout.ImageSuffix)
	default:
		return true, errors.Join(s.discardDirectories(id), file.Truncate(0))
	}
}

func (s *scratch) lock(id string) (*os.File, error) {
	file, err := tree.OpenIn(s.root, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE, imageMode)
	if err != nil {
		return nil, fmt.Errorf("make scratch of %s: %w", id, err)
	}

	if err := lockError(file.Name(), flock.TryLock(file, unix.LOCK_EX), ErrInProgress); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return file, nil
}

// rename renames a name of scratch into a directory of the pool. A directory that it replaces is then
// in scratch.
func (s *scratch) rename(into *os.Root, name string) error {
	return tree.InDirectory(s.root, func(from *os.File) error {
		return tree.InDirectory(into, func(to *os.File) error {
			err := eintr.Retry(func() error { return unix.Renameat(int(from.Fd()), name, int(to.Fd()), name) })
			if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
				// A directory replaces only an empty one.
				err = eintr.Retry(func() error {
					return unix.Renameat2(int(from.Fd()), name, int(to.Fd()), name, unix.RENAME_EXCHANGE)
				})
			}

			return err
		})
	})
}

// discard removes the scratch that this process has locked, also if the caller was
// cancelled. A directory is removed in the background.
func (s *scratch) discard(id string) (err error) {
	defer errdefs.Wrapf(&err, "clear scratch of %s in pool %q", id, s.name)

	ctx := context.Background()

	moved, err := s.unlink(ctx, id)
	if err != nil || !moved {
		return err
	}

	return s.trash.complete(ctx, id)
}

// discardDirectories discards the scratch directories of an id.
func (s *scratch) discardDirectories(id string) error {
	ctx := context.Background()

	moved, err := s.moveDirectories(ctx, id)
	if err != nil || !moved {
		return err
	}

	return s.trash.complete(ctx, id)
}

func (s *scratch) moveDirectories(ctx context.Context, id string) (moved bool, err error) {
	for _, name := range []string{id, id + layout.LinksSuffix} {
		one, err := s.trash.move(ctx, s.root, name, id)
		if err != nil {
			return false, err
		}

		moved = moved || one
	}

	return moved, nil
}

// unlink removes the scratch of an id. It returns true if a directory remains for purge. The
// lock file goes last: scratch without it could not be locked.
func (s *scratch) unlink(ctx context.Context, id string) (moved bool, err error) {
	moved, err = s.moveDirectories(ctx, id)
	if err != nil {
		return false, err
	}

	return moved, removeMissing(s.root, id+layout.ImageSuffix)
}

// RemoveStaleScratchOf removes what a crash left of an object in scratch. It returns false while
// another process is making the object.
func (s *scratch) RemoveStaleScratchOf(id string) (bool, error) {
	file, err := s.acquire(id)
	if errors.Is(err, ErrInProgress) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("clear scratch of pool %q: %w", s.name, err)
	}

	return true, errors.Join(s.discard(id), file.Close())
}

// removeStale is RemoveStaleScratchOf for all objects.
func (s *scratch) removeStale(ctx context.Context) error {
	clearOne := func(id string) error {
		_, err := s.RemoveStaleScratchOf(id)

		return err
	}

	// The lock of a directory is made before it and goes after it, but a power
	// failure may have kept only the directory.
	return errors.Join(listIDs(ctx, s.root, layout.ImageSuffix, clearOne), listIDs(ctx, s.root, "", clearOne))
}

// checkWritable creates a file without a name, so that nothing is left after a crash.
func (s *scratch) checkWritable() error {
	file, err := s.root.OpenFile(".", unix.O_TMPFILE|os.O_WRONLY, imageMode)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = tree.InDirectory(s.root, func(directory *os.File) error { return unix.Faccessat(int(directory.Fd()), ".", unix.W_OK, 0) })
	}

	if err != nil {
		return fmt.Errorf("pool %q at %s is not writable: %w", s.name, s.path, err)
	}

	_ = file.Close() // nil without O_TMPFILE

	return nil
}
