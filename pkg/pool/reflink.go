package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Reflinks says whether copies of images within the pool are instant: whether
// its filesystem can let two files share blocks until one of them is written.
func (p *Pool) Reflinks() bool { return p.reflinks }

// probeReflinks tries it. A pool that can't be written holds no copies.
func (p *Pool) probeReflinks() bool {
	source, err := p.createUnnamed()
	if err != nil {
		return false
	}
	defer source.Close()

	target, err := p.createUnnamed()
	if err != nil {
		return false
	}
	defer target.Close()

	// Some filesystems clone nothing, but no byte. A full one has no room for
	// any, and then must be believed.
	_, _ = source.WriteAt([]byte("reflink"), 0)

	return Clone(target, source) == nil
}

// unnamed makes a file that is gone when it is closed.
func (p *Pool) createUnnamed() (*os.File, error) {
	file, err := p.scratch.OpenFile(".", unix.O_TMPFILE|os.O_RDWR, imageMode)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return file, err //nolint:wrapcheck // the caller does without
	}

	id, err := volume.NewID()
	if err != nil {
		return nil, err
	}

	if file, err = OpenIn(p.scratch, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, imageMode); err != nil {
		return nil, err
	}

	return file, p.discardScratch(id)
}

// clone makes target, which is empty, share all of source's blocks, in one
// instant. Errors: ErrCloneUnsupported.
func Clone(target, source *os.File) error {
	err := eintr.Retry(func() error { return unix.IoctlFileClone(int(target.Fd()), int(source.Fd())) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: FICLONE: %w", ErrCloneUnsupported, err)
	}

	if err != nil {
		return fmt.Errorf("FICLONE: %w", err)
	}

	return nil
}

// unshare gives the file blocks of its own for those that it shares.
func Unshare(ctx context.Context, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err //nolint:wrapcheck // the caller names the object
	}

	return DataRanges(file, info.Size(), func(start, end int64) error {
		for ; start < end; start += chunkBytes {
			if ctx.Err() != nil {
				return ctx.Err()
			}

			length := min(end-start, chunkBytes)

			err := eintr.Retry(func() error { return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_UNSHARE_RANGE, start, length) })
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = rewrite(file, start, length)
			}

			if err != nil {
				return fmt.Errorf("unshare blocks: %w", err)
			}
		}

		return nil
	})
}

// rewrite is unsharing for a filesystem (btrfs) that knows no call for it: what
// is written anew gets blocks of its own.
func rewrite(file *os.File, start, length int64) error {
	buffer := make([]byte, min(length, bufferBytes))

	for end := start + length; start < end; {
		read, err := file.ReadAt(buffer[:min(end-start, bufferBytes)], start)
		if read == 0 {
			return err //nolint:wrapcheck // the caller names the object
		}

		if _, err := file.WriteAt(buffer[:read], start); err != nil {
			return err //nolint:wrapcheck // the caller names the object
		}

		start += int64(read)
	}

	return nil
}
