package pool

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// checkLength returns ErrTruncated if an image is shorter than least bytes.
func checkLength(image *os.File, least int64) error {
	info, err := image.Stat()
	if err != nil {
		return err
	}

	if info.Size() < least {
		return fmt.Errorf("%s has %d of %d bytes: %w", image.Name(), info.Size(), least, ErrTruncated)
	}

	return nil
}

// grow grows the file to at least size bytes, with all blocks allocated if thick. On an error the
// file keeps its size.
func grow(file *os.File, size int64, thick bool) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}

	if thick {
		return allocateHoles(file, info.Size(), max(size, info.Size()))
	}

	if info.Size() >= size {
		return nil
	}

	return file.Truncate(size)
}

// allocateHoles allocates all blocks of the first size bytes. It allocates holes only: XFS requires
// the whole range as free space, blocks that are allocated already included.
func allocateHoles(file *os.File, has, size int64) error {
	missing, err := unallocatedRanges(file, has, size)
	if err != nil {
		return err
	}

	for _, hole := range missing {
		err := eintr.Retry(func() error { return unix.Fallocate(int(file.Fd()), 0, hole.Offset, hole.Length) })
		if err != nil {
			// The filesystem may keep blocks behind the old end.
			return errors.Join(err, file.Truncate(has))
		}
	}

	return nil
}

// unallocatedRanges returns the ranges of the first size bytes without blocks. It returns ENOSPC if
// the pool has too little free space, before allocation starts.
func unallocatedRanges(file *os.File, has, size int64) ([]extent.Range, error) {
	missing, err := extent.Holes(file, has)
	if errors.Is(err, errors.ErrUnsupported) {
		// These filesystems (tmpfs, FUSE) have a fallocate that needs only the missing space.
		return []extent.Range{{Length: max(size, 1)}}, nil
	}

	if err != nil {
		return nil, err
	}

	if size > has {
		missing = append(missing, extent.Range{Offset: has, Length: size - has})
	}

	return missing, checkFree(file, missing)
}

// checkFree returns ENOSPC if the filesystem has less free space than the ranges need. btrfs counts
// released space as free only after the next commit, hence the syncfs.
func checkFree(file *os.File, ranges []extent.Range) error {
	var needed int64
	for _, each := range ranges {
		needed += each.Length
	}

	free, err := freeBytes(file)
	if err == nil && needed > free {
		if err = unix.Syncfs(int(file.Fd())); err == nil {
			free, err = freeBytes(file)
		}
	}

	if err != nil {
		return fmt.Errorf("probe the free space: %w", err)
	}

	if needed > free {
		return fmt.Errorf("%d bytes have to be allocated and %d are free: %w", needed, free, unix.ENOSPC)
	}

	return nil
}

// freeBytes includes the blocks reserved for root; fallocate decides whether the caller may use
// them.
func freeBytes(file *os.File) (int64, error) {
	var stat unix.Statfs_t

	err := eintr.Retry(func() error { return unix.Fstatfs(int(file.Fd()), &stat) })

	return blocksToBytes(stat.Bfree, int64(stat.Bsize)), err //nolint:unconvert // its type depends on the architecture
}
