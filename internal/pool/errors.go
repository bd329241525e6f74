package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Errors of this package.
var (
	// ErrNoSpace is returned if the pool has too little free space for a request.
	ErrNoSpace = errdefs.New(errdefs.ErrResourceExhausted, "the pool has no space left")
	// ErrMissing is returned if a volume's image or directory is not in the pool.
	ErrMissing = errdefs.New(errdefs.ErrNotFound, "not in the pool")
	// ErrNotDirectory is returned if the path of a pool, or of one of its directories, is not a
	// directory.
	ErrNotDirectory = errors.New("it is not a directory")
	// ErrTruncated is returned if an image is shorter than its record says: data is lost. Growing or
	// copying it would hide that behind zeros.
	ErrTruncated = errdefs.New(errdefs.ErrFailedPrecondition,
		"the image was truncated and data is lost; restore a snapshot, or put the image back")
	// ErrInProgress is returned if another process is making the same object.
	ErrInProgress = errdefs.New(errdefs.ErrAborted, "it is being made by another process")
	// ErrInUse is returned if an image is attached, on this or another node.
	ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "the image is attached, here or on another node")
	// ErrReplaced is returned if the directory at a pool's path is not the one that was opened: its
	// filesystem was unmounted, or another one mounted over it.
	ErrReplaced = errors.New("it was replaced by another directory")
	// ErrReadOnly is returned for a pool in which no file can be created.
	ErrReadOnly = errors.New("it is read-only")
	// ErrNoLocks is returned if the pool's filesystem has no file locks, without which two nodes
	// could use one image.
	ErrNoLocks = errdefs.New(errdefs.ErrFailedPrecondition,
		"the pool's filesystem has no file locks (flock); put the pool on one that has, or mount it with locks")
)

// label names a pool, as the errors of its parts do, and has its directory, beneath which they resolve all
// other names.
type label struct {
	name, path string
	directory  *os.Root
}

// Name returns the pool's name.
func (l label) Name() string { return l.name }

// Path returns the pool's absolute path.
func (l label) Path() string { return l.path }

func (l label) syncDirectory(root *os.Root) error {
	if err := syncDirectory(root); err != nil {
		return l.spaceError(fmt.Errorf("sync %s: %w", root.Name(), err))
	}

	return nil
}

// ExplainToolFailure returns the error of a program that wrote into the pool, as ErrNoSpace if the pool
// is full. Not all programs report that: mkfs.btrfs says "Input/output error".
func (l label) ExplainToolFailure(err error) error {
	const nothing = 1 << 20 // a filesystem keeps some blocks for its own metadata

	whole, used, statErr := space(l.path)
	if err != nil && statErr == nil && whole.Total-used < nothing {
		err = fmt.Errorf("%w: %w", unix.ENOSPC, err)
	}

	return l.spaceError(err)
}

// spaceError wraps ENOSPC and EDQUOT in ErrNoSpace with the name of the pool.
func (l label) spaceError(err error) error {
	if errors.Is(err, ErrNoSpace) {
		return err
	}

	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("pool %q at %s: %w: %w", l.name, l.path, ErrNoSpace, err)
	}

	return err
}

func (l label) notFoundError(object string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w %q at %s", object, ErrMissing, l.name, l.path)
	}

	return fmt.Errorf("%s in pool %q: %w", object, l.name, err)
}
