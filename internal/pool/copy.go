package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
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
	pool           *Pool
	source, target Object
	options        CopyOptions
	pointInTime    bool

	// opened is the source: an image, or the root of a directory.
	opened *os.File
	// file is the scratch image; for a directory only its lock file.
	file *os.File
	// tree is the root of the scratch directory, opened before the first write, so that syncfs
	// reports each write error since then.
	tree *os.File
	// allocated is the space of the scratch directory in bytes.
	allocated int64
}

// NewCopy prepares a copy of source, in the pool from, as target in this pool.
// Errors: ErrMissing, ErrTruncated, ErrInProgress, ErrNoSpace.
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

	if source.Backing == volume.BackingImage {
		if err := checkLength(opened, options.SourceBytes); err != nil {
			return nil, errors.Join(fmt.Errorf("copy %s to %s: %w", source, target, err), opened.Close())
		}
	}

	c := &Copy{
		pool: p, source: source, target: target, options: options, opened: opened,
	}
	c.pointInTime = p == from && c.canShare()

	if err := c.prepare(); err != nil {
		return nil, c.failed("prepare the copy of", err)
	}

	return c, nil
}

// canShare reports whether the filesystem copies the source at one point in time, within its pool.
func (c *Copy) canShare() bool {
	if c.source.Backing == volume.BackingDirectory {
		return c.pool.quotas.CanSnapshot(c.opened)
	}

	return c.pool.reflinks
}

func (c *Copy) prepare() error {
	var err error
	if c.file, err = c.pool.acquireScratch(c.target.ID); err != nil {
		return err
	}

	if c.target.Backing == volume.BackingDirectory {
		return c.prepareTree()
	}

	info, err := c.opened.Stat()
	if err != nil {
		return err
	}

	if c.pointInTime {
		// FICLONE writes dirty pages first. Write most of them now, to shorten the time for which
		// the filesystem is frozen. CopyData returns the errors.
		_ = unix.SyncFileRange(int(c.opened.Fd()), 0, 0,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	}

	return copyOwner(info, c.file)
}

// PointInTime reports whether CopyData is atomic (FICLONE, or a snapshot of a subvolume), so that
// the source may be written meanwhile.
func (c *Copy) PointInTime() bool { return c.pointInTime }

// File returns the scratch image, locked and at a path that no other process uses; for a directory
// it is only the lock file. Abort closes it and removes the path.
func (c *Copy) File() *os.File { return c.file }

// CopyData copies the content of the source. Unless PointInTime is true, the source must not be
// written meanwhile. CopyData does not sync the copy or make it visible. Errors: ErrNoSpace,
// ErrTruncated, filecopy.ErrCloneUnsupported, ctx's.
func (c *Copy) CopyData(ctx context.Context) error {
	var err error

	switch {
	case c.target.Backing == volume.BackingDirectory && c.pointInTime:
		err = c.snapshotTree()
	case c.target.Backing == volume.BackingDirectory:
		err = c.copyTree(ctx)
	case c.pointInTime:
		err = c.clone(c.opened)
	default:
		err = c.copyImage(ctx)
	}

	if err != nil {
		return c.failed("copy", err)
	}

	return nil
}

// clone shares the blocks of an opened source. Since NewCopy it may have been truncated: Commit would
// fill what is missing with zeros.
func (c *Copy) clone(source *os.File) error {
	if err := filecopy.Clone(c.file, source); err != nil {
		return err
	}

	return checkLength(source, c.options.SourceBytes)
}

func (c *Copy) copyImage(ctx context.Context) error {
	info, err := c.opened.Stat()
	if err != nil {
		return err
	}

	// Grow the file first: a thick copy without enough space fails now.
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

	if err := moving.Copy(ctx, c.file, c.opened, info.Size()); err != nil {
		return err
	}

	return checkLength(c.opened, c.options.SourceBytes)
}

// Commit syncs the copy and renames it into place, replacing what was there. It returns the space
// of the copy in bytes, shared blocks included. Errors: ErrNoSpace, ctx's.
func (c *Copy) Commit(ctx context.Context) (allocatedBytes int64, err error) {
	if c.target.Backing == volume.BackingDirectory {
		allocatedBytes, err = c.commitTree(ctx)
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

	// copy_file_range may share blocks, too.
	if c.options.Thick && c.pool.reflinks {
		if err := filecopy.Unshare(ctx, c.file); err != nil {
			return 0, err
		}
	}

	if err := c.file.Sync(); err != nil {
		return 0, err
	}

	info, err := c.file.Stat()
	if err != nil {
		return 0, err
	}

	if err := c.pool.renameFromScratch(c.target); err != nil {
		return 0, err
	}

	return allocatedBytes(info), nil
}

// Abort removes a copy that is not committed. After Commit it does nothing.
func (c *Copy) Abort() error {
	var err error

	// Without the lock the scratch is another process's.
	if c.file != nil {
		err = c.pool.discardScratch(c.target.ID)
	}

	// Closing a removed file frees its space.
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
