package pool

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// imageCopy copies an image.
type imageCopy struct {
	*transfer

	// reflinks is true if images of the target's pool share blocks.
	reflinks bool
	// within means that the source is in the same pool.
	within bool
}

// copyOf returns the copy of an image. Errors: ErrTruncated.
func (i *Images) copyOf(t *transfer, within bool) (contents, error) {
	return &imageCopy{transfer: t, reflinks: i.reflinks, within: within}, checkLength(t.opened, t.options.SourceBytes)
}

func (c *imageCopy) pointInTime() bool { return c.within && c.reflinks }

func (c *imageCopy) prepare() error {
	info, err := c.opened.Stat()
	if err != nil {
		return err
	}

	if c.pointInTime() {
		// FICLONE writes dirty pages first. Write most of them now, to shorten the time for which
		// the filesystem is frozen. CopyData returns the errors.
		_ = unix.SyncFileRange(int(c.opened.Fd()), 0, 0,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	}

	return copyOwner(info, c.file)
}

func (c *imageCopy) copy(ctx context.Context) error {
	if c.pointInTime() {
		return c.clone(c.opened)
	}

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

// clone shares the blocks of an opened source. Since NewCopy it may have been truncated: Commit would
// fill what is missing with zeros.
func (c *imageCopy) clone(source *os.File) error {
	if err := filecopy.Clone(c.file, source); err != nil {
		return err
	}

	return checkLength(source, c.options.SourceBytes)
}

// cloneFrom clones the source as it is in another directory of images.
func (c *imageCopy) cloneFrom(images *os.Root) error {
	source, err := tree.OpenIn(images, c.source.fileName(), os.O_RDONLY, 0)
	if err != nil {
		return c.scratch.notFoundError(c.source.String(), err)
	}
	defer source.Close()

	return c.clone(source)
}

func (c *imageCopy) commit(ctx context.Context) (int64, error) {
	if err := grow(c.file, c.options.SizeBytes, c.options.Thick); err != nil {
		return 0, err
	}

	// copy_file_range may share blocks, too.
	if c.options.Thick && c.reflinks {
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

	return allocatedBytes(info), c.publish()
}

// close has nothing to close: the files of a transfer are those of the copy.
func (*imageCopy) close() error { return nil }
