package extent

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// seekReader finds extents with SEEK_DATA, which reports no physical offsets.
type seekReader struct {
	file        *os.File
	offset, end int64
}

func (s *seekReader) Next(ctx context.Context) (Extent, bool, error) {
	if err := ctx.Err(); err != nil {
		return Extent{}, false, fmt.Errorf("find data in %s: %w", s.file.Name(), err)
	}

	if s.offset >= s.end {
		return Extent{}, false, nil
	}

	start, err := s.file.Seek(s.offset, unix.SEEK_DATA)
	end := start

	if err == nil && start < s.end {
		end, err = s.file.Seek(start, unix.SEEK_HOLE)
	}

	// A block device can't be searched for data.
	if errors.Is(err, unix.EINVAL) {
		start, end, err = s.offset, s.end, nil
	}

	// ENXIO means no data behind that offset, also where the file has become shorter meanwhile.
	if errors.Is(err, unix.ENXIO) || err == nil && start >= s.end {
		return Extent{}, false, nil
	}

	if err != nil {
		return Extent{}, false, fmt.Errorf("find data in %s from %d: %w", s.file.Name(), s.offset, err)
	}

	s.offset = min(end, s.end)

	return Extent{Start: start, End: s.offset}, true, nil
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
	for reader := (&seekReader{file: file, end: size}); ; {
		found, ok, err := reader.Next(context.Background())
		if err != nil || !ok {
			return err
		}

		if err := visit(found.Start, found.End); err != nil {
			return err
		}
	}
}
