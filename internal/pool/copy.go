package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// CopyOptions describe the copy.
type CopyOptions struct {
	// SourceBytes is what an image has at least that is copied; a shorter one is ErrTruncated.
	SourceBytes int64
	// SizeBytes is the least size of a copied image, for which 0 is the source's, and the size limit
	// of a copied directory, for which 0 is none.
	SizeBytes int64
	// Thick allocates all blocks of the image, unshared.
	Thick bool
	// Progress, unless nil, is called with the bytes copied and their total while they are copied,
	// but not for a point-in-time copy. The total of a directory is its size when the copy starts.
	Progress func(done, total int64)
}

// Copy is an object that is being copied. It is not visible before Commit; after a crash only its
// scratch remains, which RemoveStaleScratch removes. If CopyData or Commit fails, it has called
// Abort.
type Copy struct {
	*transfer

	contents contents
}

// transfer is the source and the target of a copy.
type transfer struct {
	scratch        *scratch
	source, target Object
	options        CopyOptions
	// into is the directory of the target.
	into *os.Root
	// opened is the source: an image, or the root of a directory.
	opened *os.File
	// file is the scratch image; for a directory only its lock file.
	file *os.File
}

// contents copies what an object consists of: an image, or a directory tree.
type contents interface {
	// pointInTime reports whether copy is atomic.
	pointInTime() bool
	// prepare prepares the scratch, which is locked.
	prepare() error
	copy(ctx context.Context) error
	// commit completes the copy, renames it into place and returns its space in bytes.
	commit(ctx context.Context) (allocatedBytes int64, err error)
	close() error
}

// NewCopy prepares a copy of source, in the pool from, as target in this pool.
// Errors: ErrMissing, ErrTruncated, ErrInProgress, ErrNoSpace.
func (p *Pool) NewCopy(from *Pool, source, target Object, options CopyOptions) (*Copy, error) {
	if source.Backing != target.Backing {
		return nil, fmt.Errorf("copy %s to %s: %w: %s to %s", source, target, errors.ErrUnsupported, source.Backing, target.Backing)
	}

	into, err := p.parentOf(target)
	if err != nil {
		return nil, err
	}

	opened, err := from.open(source, os.O_RDONLY)
	if err != nil {
		return nil, err
	}

	t := &transfer{scratch: p.scratch, source: source, target: target, options: options, into: into, opened: opened}

	copied, err := p.Backing(source.Backing).copyOf(t, p == from)
	c := &Copy{transfer: t, contents: copied}

	if err != nil {
		return nil, c.failed("copy", err)
	}

	if c.file, err = p.acquire(target.ID); err == nil {
		err = copied.prepare()
	}

	if err != nil {
		return nil, c.failed("prepare the copy of", err)
	}

	return c, nil
}

// PointInTime reports whether CopyData is atomic (FICLONE, or a snapshot of a subvolume), so that
// the source may be written meanwhile.
func (c *Copy) PointInTime() bool { return c.contents.pointInTime() }

// ImageCopy is the copy of an image.
type ImageCopy struct {
	*Copy

	image *imageCopy
}

// Image returns the copy of an image, false for that of a directory.
func (c *Copy) Image() (*ImageCopy, bool) {
	image, isImage := c.contents.(*imageCopy)

	return &ImageCopy{c, image}, isImage
}

// File returns the scratch image, locked and at a path that no other process uses. Abort closes it and
// removes the path.
func (c *ImageCopy) File() *os.File { return c.file }

// CopyData copies the content of the source. Unless PointInTime is true, the source must not be
// written meanwhile. CopyData does not sync the copy or make it visible. Errors: ErrNoSpace,
// ErrTruncated, filecopy.ErrCloneUnsupported, ctx's.
func (c *Copy) CopyData(ctx context.Context) error {
	if err := c.contents.copy(ctx); err != nil {
		return c.failed("copy", err)
	}

	return nil
}

// Commit syncs the copy and renames it into place, replacing what was there. It returns the space
// of the copy in bytes, shared blocks included. Errors: ErrNoSpace, ctx's.
func (c *Copy) Commit(ctx context.Context) (allocatedBytes int64, err error) {
	if allocatedBytes, err = c.contents.commit(ctx); err != nil {
		return 0, c.failed("complete the copy of", err)
	}

	return allocatedBytes, c.close()
}

// publish renames the copy from scratch into place, durably. A directory that it replaces is then in
// scratch.
func (t *transfer) publish() (err error) {
	defer errdefs.Wrapf(&err, "put %s in place", t.target)

	if err := t.scratch.rename(t.into, t.target.fileName()); err != nil {
		return err
	}

	return t.scratch.syncDirectory(t.into)
}

// Abort removes a copy that is not committed. After Commit it does nothing.
func (c *Copy) Abort() error {
	var err error

	// Without the lock the scratch is another process's.
	if c.file != nil {
		err = c.scratch.discard(c.target.ID)
	}

	// Closing a removed file frees its space.
	return errors.Join(err, c.close())
}

func (c *Copy) close() error {
	return errors.Join(c.contents.close(), closeOnce(&c.opened), closeOnce(&c.file))
}

// closeOnce closes a file unless it is closed.
func closeOnce(file **os.File) error {
	if *file == nil {
		return nil
	}

	closed := *file
	*file = nil

	return closed.Close()
}

func (c *Copy) failed(doing string, err error) error {
	return errors.Join(c.scratch.spaceError(fmt.Errorf("%s %s to %s: %w", doing, c.source, c.target, err)), c.Abort())
}
