package filecopy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// ErrCloneUnsupported is returned if the filesystem cannot share blocks between two files.
var ErrCloneUnsupported = errdefs.New(errdefs.ErrFailedPrecondition, "the filesystem makes no instant copy of this file")

// Clone makes target, which is empty, share all blocks of source, at one point in time. Errors:
// ErrCloneUnsupported.
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

// Unshare allocates blocks of the file's own for those that it shares.
func Unshare(ctx context.Context, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}

	return extent.DataRanges(file, info.Size(), func(start, end int64) error {
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

// rewrite unshares blocks on a filesystem without a call for it (btrfs): written data gets new
// blocks.
func rewrite(file *os.File, start, length int64) error {
	buffer := make([]byte, min(length, bufferBytes))

	for end := start + length; start < end; {
		read, err := file.ReadAt(buffer[:min(end-start, bufferBytes)], start)
		if read == 0 {
			return err
		}

		if _, err := file.WriteAt(buffer[:read], start); err != nil {
			return err
		}

		start += int64(read)
	}

	return nil
}
