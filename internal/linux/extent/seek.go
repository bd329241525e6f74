package extent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// data yields the extents between from and end by SEEK_DATA, which reports no physical offsets. It ends
// after the first error.
func data(ctx context.Context, file *os.File, from, end int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for at := from; at < end; {
			start, err := file.Seek(at, unix.SEEK_DATA)
			stop := start

			if err == nil && start < end {
				stop, err = file.Seek(start, unix.SEEK_HOLE)
			}

			switch {
			case ctx.Err() != nil:
				err = ctx.Err()
			// A block device can't be searched for data, nor can a filesystem that knows no holes.
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
				start, stop, err = at, end, nil
			case errors.Is(err, unix.ENXIO), err == nil && start >= end:
				return // no data behind that offset, also where the file has become shorter meanwhile
			}

			if err != nil {
				yield(Extent{}, fmt.Errorf("find data in %s from %d: %w", file.Name(), at, err))

				return
			}

			at = min(stop, end)
			if !yield(Extent{Start: start, End: at}, nil) {
				return
			}
		}
	}
}

// DataBytes counts the bytes of DataRanges.
func DataBytes(file *os.File, size int64) (total int64, err error) {
	err = DataRanges(file, size, func(start, end int64) error {
		total += end - start

		return nil
	})

	return total, err
}

// DataRanges calls visit for every range of the file's first size bytes that is
// no hole.
func DataRanges(file *os.File, size int64, visit func(start, end int64) error) error {
	for found, err := range data(context.Background(), file, 0, size) {
		if err != nil {
			return err
		}

		if err := visit(found.Start, found.End); err != nil {
			return err
		}
	}

	return nil
}
