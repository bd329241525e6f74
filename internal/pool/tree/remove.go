package tree

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

const (
	// maxLevels is how many directories of a tree are open at once. Deeper ones are moved to the top
	// first, so that any depth needs no more descriptors.
	maxLevels = 16
	// removeBatch is how many names of each open directory are in memory.
	removeBatch = 256
	// maxUnmovable bounds the open directories where none can be moved up: btrfs
	// renames no directory out of a subvolume.
	maxUnmovable = 256
)

// ErrMounted is returned if a mount below a directory keeps it from being removed.
var ErrMounted = errdefs.New(errdefs.ErrFailedPrecondition, "something is mounted there; unmount it")

// errNotEmpty is for a directory that lists no entries and cannot be removed.
var errNotEmpty = errors.New("the directory is not empty, but lists no entries")

// RemoveName removes a file or an empty directory, after clearing the flags that forbid it. It
// returns false for a directory that is not empty. A name that is missing is no error. Errors:
// ErrMounted.
func RemoveName(directory *os.File, name string) (removed bool, err error) {
	// The flags of directory itself belong to the pool, not to a volume.
	err = removeEntry(directory, name, false)
	if isNotEmpty(err) {
		return false, nil
	}

	return err == nil, err
}

// Move renames a directory to target/renamed. If that exists already, the directory is moved into
// it under a unique name, so that both are removed together. Errors: ErrMounted.
func Move(from *os.File, name string, target *os.File, renamed string) error {
	for {
		err := moveDirectory(from, name, target, renamed)
		if !isNotEmpty(err) {
			return err
		}

		earlier, err := openWithin(target, renamed)
		if err != nil {
			err = removalError(target, renamed, err)
		} else {
			err = moveDirectory(from, name, earlier, rand.Text())
			_ = earlier.Close()
		}

		// Another process may just have removed target/renamed.
		if !errors.Is(err, unix.ENOENT) || !exists(from, name) {
			return err
		}
	}
}

// Remove removes a name and all that is below it. Descriptors and memory are bounded, whatever the
// tree is like, and no mount is crossed. After an error it continues with the rest, and returns the
// first error. Errors: ErrMounted, ctx's.
func Remove(ctx context.Context, parent *os.File, name string) error {
	for {
		err := removeEntry(parent, name, false)
		if !isNotEmpty(err) {
			return err
		}

		pass := &remover{}
		err = pass.below(ctx, parent, name, 0)

		if pass.spill != nil && pass.spill != pass.area {
			_ = pass.spill.Close()
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		// Directories that were moved up remain for the next pass.
		if pass.removed == 0 && (err != nil || pass.area != nil) {
			return cmp.Or(err, removalError(parent, name, errNotEmpty))
		}
	}
}

// remover makes one pass over a directory. It removes all but directories more than maxLevels deep, which
// it moves to the top.
type remover struct {
	// area is the directory; nil until it is open, or if it is missing.
	area *os.File
	// spill is a directory in area for directories that are too deep for this pass; nil until it is
	// needed.
	spill *os.File
	// removed counts the names that were removed or moved.
	removed int
}

// each removes names of a directory. It continues after an error and returns the first.
func (r *remover) each(ctx context.Context, directory *os.File, names []string, level int) error {
	var failure error

	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if err := r.entry(ctx, directory, name, level); err != nil {
			failure = cmp.Or(failure, err)
		} else {
			r.removed++
		}
	}

	return failure
}

// entry removes one name and everything below it.
func (r *remover) entry(ctx context.Context, parent *os.File, name string, level int) error {
	for {
		err := removeEntry(parent, name, true)
		if !isNotEmpty(err) {
			return err
		}

		if level >= maxLevels {
			err = r.moveUp(parent, name)
			if !unmovable(err) || level >= maxUnmovable {
				return err
			}
		}

		before := r.removed
		if err := r.below(ctx, parent, name, level+1); err != nil {
			return err
		}

		if r.removed == before {
			return removalError(parent, name, errNotEmpty)
		}
	}
}

// below opens a directory and removes its content.
func (r *remover) below(ctx context.Context, parent *os.File, name string, level int) error {
	directory, err := openWithin(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}

	if err != nil {
		return removalError(parent, name, err)
	}
	defer directory.Close()

	if r.area == nil {
		r.area = directory
	}

	if err := makeWritable(directory); err != nil {
		return removalError(parent, name, err)
	}

	return r.content(ctx, directory, level)
}

// content removes the content of an open directory.
func (r *remover) content(ctx context.Context, directory *os.File, level int) error {
	var failure error

	for {
		names, err := directory.Readdirnames(removeBatch)
		if failed := r.each(ctx, directory, names, level); failure == nil {
			failure = failed
		}

		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return failure
		}

		if err != nil {
			return cmp.Or(failure, removalError(directory, "", err))
		}
	}
}

// moveUp moves a directory to the top for the next pass: into spill, so that the next pass reads
// each name once, or into area if spill cannot be created.
func (r *remover) moveUp(parent *os.File, name string) error {
	if r.spill == nil {
		made := rand.Text()
		r.spill = r.area

		_ = unix.Mkdirat(int(r.area.Fd()), made, directoryMode)
		if spill, err := openWithin(r.area, made); err == nil {
			r.spill = spill
		}
	}

	return moveDirectory(parent, name, r.spill, rand.Text())
}

// unmovable reports whether an error of moveUp is due to the location of the directory, so that it
// can only be removed there.
func unmovable(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
