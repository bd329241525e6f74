package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/pkg/pool/filecopy"
	"github.com/touchstone-csi/touchstone/pkg/pool/tree"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// CopyOptions say what the copy shall be.
type CopyOptions struct {
	// SizeBytes is the least size of a copied image; 0 is the source's.
	SizeBytes int64
	// Thick gives the image all of its space, shared with no other.
	Thick bool
	// Progress, which may be nil, is told the bytes copied so far and of how
	// many, as they are copied; never for a copy that is instant. Of a
	// directory total is what it held when the copy began.
	Progress func(done, total int64)
}

// Copy is an object that is being made of another. It is seen by nobody until
// Commit; a crash before leaves only scratch, which RemoveStaleScratch removes. A
// CopyData or Commit that fails has done what Abort does.
type Copy struct {
	pool           *Pool
	source, target Object
	options        CopyOptions
	pointInTime    bool

	// opened is the source: an image, or the root of a directory.
	opened *os.File
	// file is the scratch image; of a directory only its lock.
	file *os.File
	// tree is the root of the scratch directory. It is open from before the
	// first byte, for syncfs to tell of every write that failed since.
	tree *os.File
	// held is how many bytes the scratch directory takes.
	allocated int64
}

// NewCopy prepares a copy of source, in the pool from, as target in this pool.
// Errors: ErrMissing, ErrInProgress, ErrNoSpace.
func (p *Pool) NewCopy(from *Pool, source, target Object, options CopyOptions) (*Copy, error) {
	if source.Backing != target.Backing {
		return nil, fmt.Errorf("copy %s to %s: %w: %s to %s", source, target, errors.ErrUnsupported, source.Backing, target.Backing)
	}

	if err := checkID(target.ID); err != nil {
		return nil, err
	}

	opened, err := from.open(source)
	if err != nil {
		return nil, err
	}

	c := &Copy{
		pool: p, source: source, target: target, options: options, opened: opened,
		pointInTime: p == from && p.reflinks && source.Backing == volume.BackingImage,
	}

	if err := c.prepare(); err != nil {
		return nil, c.failed("prepare the copy of", err)
	}

	return c, nil
}

func (c *Copy) prepare() error {
	var err error
	if c.file, err = c.pool.acquireScratch(c.target.ID); err != nil {
		return err
	}

	if c.target.Backing == volume.BackingDirectory {
		if err = c.pool.scratch.Mkdir(c.target.ID, directoryMode); err == nil {
			c.tree, err = tree.OpenIn(c.pool.scratch, c.target.ID, os.O_RDONLY|unix.O_DIRECTORY, 0)
		}

		return err
	}

	info, err := c.opened.Stat()
	if err != nil {
		return err //nolint:wrapcheck // the caller names both ends
	}

	if c.pointInTime {
		// FICLONE writes what is dirty first. Most of it can be written now, so
		// that a filesystem frozen for the cut is so for a shorter time. An
		// error is the cut's to meet.
		_ = unix.SyncFileRange(int(c.opened.Fd()), 0, 0,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	}

	return copyOwner(info, c.file)
}

// PointInTime says whether CopyData is atomic and takes no time (FICLONE), so that it
// gives one moment of a source that is being written meanwhile.
func (c *Copy) PointInTime() bool { return c.pointInTime }

// File is the image in the making, locked and at a path that nobody else uses; of
// a directory it stands only for that. Abort closes it, and removes the path.
func (c *Copy) File() *os.File { return c.file }

// CopyData takes the source's bytes. While it runs a source for which PointInTime is
// false must not be written. It neither waits for the disk nor makes the copy
// visible. Errors: ErrNoSpace, filecopy.ErrCloneUnsupported, ctx's.
func (c *Copy) CopyData(ctx context.Context) error {
	var err error

	switch {
	case c.pointInTime:
		err = filecopy.Clone(c.file, c.opened)
	case c.target.Backing == volume.BackingDirectory:
		err = c.copyTree(ctx)
	default:
		err = c.copyImage(ctx)
	}

	if err != nil {
		return c.failed("copy", err)
	}

	return nil
}

func (c *Copy) copyImage(ctx context.Context) error {
	info, err := c.opened.Stat()
	if err != nil {
		return err //nolint:wrapcheck // the caller names both ends
	}

	// All at first: a thick copy that has no room shall fail now.
	if err := grow(c.file, max(info.Size(), c.options.SizeBytes), c.options.Thick); err != nil {
		return err
	}

	var moving filecopy.Copier

	if c.options.Progress != nil {
		total, err := extent.DataBytes(c.opened, info.Size())
		if err != nil {
			return err
		}

		moving.ReportTo(c.options.Progress, total)
	}

	return moving.Copy(ctx, c.file, c.opened, info.Size())
}

// Commit makes the copy be the target, durably, and says how many bytes of the
// pool it holds, shared ones included. What the target was before, if it was,
// is replaced. Errors: ErrNoSpace, ctx's.
func (c *Copy) Commit(ctx context.Context) (allocatedBytes int64, err error) {
	if c.target.Backing == volume.BackingDirectory {
		allocatedBytes, err = c.commitTree()
	} else {
		allocatedBytes, err = c.commitImage(ctx)
	}

	if err != nil {
		return 0, c.failed("complete the copy of", err)
	}

	return allocatedBytes, c.close()
}

func (c *Copy) commitImage(ctx context.Context) (int64, error) {
	if err := grow(c.file, c.options.SizeBytes, c.options.Thick); err != nil {
		return 0, err
	}

	// A copy that was not instant may share blocks too: copy_file_range does
	// where it can.
	if c.options.Thick && c.pool.reflinks {
		if err := filecopy.Unshare(ctx, c.file); err != nil {
			return 0, err
		}
	}

	if err := c.file.Sync(); err != nil {
		return 0, err //nolint:wrapcheck // the caller names both ends
	}

	info, err := c.file.Stat()
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller names both ends
	}

	if err := c.pool.renameFromScratch(c.target); err != nil {
		return 0, err
	}

	return allocatedBytes(info), nil
}

// Abort removes what is not committed. It may be called after Commit, and then
// does nothing.
func (c *Copy) Abort() error {
	var err error

	// Without the lock it is another's.
	if c.file != nil {
		err = c.pool.discardScratch(c.target.ID)
	}

	// What is removed gives its space back when it is closed.
	return errors.Join(err, c.close())
}

func (c *Copy) close() error {
	var failures []error

	for _, file := range []**os.File{&c.tree, &c.opened, &c.file} {
		if *file != nil {
			failures = append(failures, (*file).Close())
			*file = nil
		}
	}

	return errors.Join(failures...)
}

func (c *Copy) failed(doing string, err error) error {
	return errors.Join(c.pool.spaceError(fmt.Errorf("%s %s to %s: %w", doing, c.source, c.target, err)), c.Abort())
}
