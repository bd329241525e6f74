package extent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Extent is a run of written bytes of a file.
type Extent struct {
	Start, End int64
	// Located means that Physical is the offset of Start on the filesystem. Bytes at the same
	// physical offset are the same.
	Located  bool
	Physical int64
	// Shared means that another file may have the same blocks, Encoded that the blocks hold
	// compressed or encrypted data.
	Shared, Encoded bool
}

// From returns the part of the extent behind offset.
func (e Extent) From(offset int64) Extent {
	if offset > e.Start {
		e.Physical += offset - e.Start
		e.Start = offset
	}

	return e
}

// Range is a part of a file in bytes. Its Length is more than 0.
type Range struct{ Offset, Length int64 }

// End is the offset behind the range.
func (r Range) End() int64 { return r.Offset + r.Length }

// Written yields the written extents between from and end, in order and without overlap: from FIEMAP
// or, on a filesystem without it, from SEEK_DATA. It ends after the first error.
func Written(ctx context.Context, file *os.File, from, end int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		reader := &fiemapReader{file: file, offset: from, end: end, flags: fiemapFlagSync}

		for found, err := range reader.extents(ctx) {
			if errors.Is(err, errors.ErrUnsupported) {
				data(ctx, file, reader.offset, end)(yield)

				return
			}

			if !yield(found, err) {
				return
			}
		}
	}
}

// Allocated yields the extents of a file, reserved ones that were never written included. It does
// not write dirty pages first, so the extents of recent writes may be missing. It ends after the first
// error, which is errors.ErrUnsupported on a filesystem without FIEMAP.
func Allocated(ctx context.Context, file *os.File) iter.Seq2[Extent, error] {
	return (&fiemapReader{file: file, end: math.MaxInt64, unwritten: true}).extents(ctx)
}

// Holes returns the ranges of the file's first size bytes for which no blocks are allocated.
// Preallocated blocks are no hole, although SEEK_HOLE reports them as one. The error is
// errors.ErrUnsupported on a filesystem without FIEMAP.
func Holes(file *os.File, size int64) ([]Range, error) {
	var (
		holes []Range
		at    int64
	)

	add := func(end int64) {
		if end > at {
			holes = append(holes, Range{Offset: at, Length: end - at})
		}
	}

	for found, err := range (&fiemapReader{file: file, end: size, unwritten: true, flags: fiemapFlagSync}).extents(context.Background()) {
		if err != nil {
			return nil, err
		}

		add(found.Start)
		at = found.End
	}

	add(size)

	return holes, nil
}

// ComparablePhysical reports whether equal physical offsets mean equal bytes in both files. It is
// true only for filesystems that are known to guarantee it; elsewhere (stacked filesystems, several
// devices with offsets of their own) equal offsets may be a coincidence.
func ComparablePhysical(a, b *os.File) (bool, error) {
	var devices [2]uint64

	for i, file := range []*os.File{a, b} {
		device, known, err := physicalSpace(file)
		if err != nil || !known {
			return false, err
		}

		devices[i] = device
	}

	return devices[0] == devices[1], nil
}

func physicalSpace(file *os.File) (device uint64, known bool, err error) {
	var (
		stat  unix.Stat_t
		whole unix.Statfs_t
	)

	if err := errors.Join(unix.Fstat(int(file.Fd()), &stat), unix.Fstatfs(int(file.Fd()), &whole)); err != nil {
		return 0, false, fmt.Errorf("filesystem of %s: %w", file.Name(), err)
	}

	switch whole.Type {
	case unix.BTRFS_SUPER_MAGIC:
		return stat.Dev, true, nil
	case unix.XFS_SUPER_MAGIC:
		// A file may be on XFS's realtime device, whose offsets start at 0 as well.
		var attributes fsxattr

		_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), fsIocFsGetXattr, uintptr(unsafe.Pointer(&attributes)))

		return stat.Dev, errno == 0 && attributes.xflags&fsXflagRealtime == 0, nil
	default:
		return 0, false, nil
	}
}
