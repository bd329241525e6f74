package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/fs.h and linux/fiemap.h, which x/sys/unix lacks.
const (
	fsIocFiemap     = 0xc020660b // _IOWR('f', 11, struct fiemap)
	fsIocFsGetXattr = 0x801c581f // _IOR('X', 31, struct fsxattr)

	// fiemapFlagSync has the kernel write dirty pages first: until they are, the
	// map does not tell of them.
	fiemapFlagSync = 0x1

	fiemapExtentLast      = 0x1
	fiemapExtentUnknown   = 0x2
	fiemapExtentDelalloc  = 0x4
	fiemapExtentEncoded   = 0x8
	fiemapExtentNoPlace   = 0x100 // NOT_ALIGNED, which DATA_INLINE and DATA_TAIL imply
	fiemapExtentUnwritten = 0x800
	fiemapExtentShared    = 0x2000

	// fiemapUnlocated are the flags of extents whose fe_physical does not say
	// where exactly their bytes are.
	fiemapUnlocated = fiemapExtentUnknown | fiemapExtentDelalloc | fiemapExtentEncoded | fiemapExtentNoPlace

	fsXflagRealtime = 0x1

	// fiemapPage extents take 28 KiB and one system call.
	fiemapPage = 512
)

// fiemapExtent is struct fiemap_extent.
type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// fiemapRequest is struct fiemap, with its extents.
type fiemapRequest struct {
	start, length                   uint64
	flags, mapped, extentCount, pad uint32
	extents                         [fiemapPage]fiemapExtent
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	xflags uint32
	_      [6]uint32
}

// extent is a run of a file's bytes that have been written, so that they need
// not be zero.
type Extent struct {
	Start, End int64
	// located says that physical is where start is on the filesystem. Bytes at
	// the same place are the same bytes.
	Located  bool
	Physical int64
	// shared means that another file may have the same blocks, encoded that the
	// blocks hold compressed or encrypted data.
	Shared, Encoded bool
}

// from is the part of the extent behind offset.
func (e Extent) From(offset int64) Extent {
	if offset > e.Start {
		e.Physical += offset - e.Start
		e.Start = offset
	}

	return e
}

// extents hands out a file's extents in order, without an overlap; ok is false
// behind the last.
type ExtentReader interface {
	Next(ctx context.Context) (found Extent, ok bool, err error)
}

// WrittenExtents are those of the file between from and end: what its filesystem
// maps (FIEMAP) or else where it says that data is (SEEK_DATA).
func WrittenExtents(file *os.File, from, end int64) ExtentReader {
	return &fiemapReader{file: file, offset: from, end: end}
}

// mapped reads the extents page by page.
type fiemapReader struct {
	file        *os.File
	offset, end int64

	// unwritten includes space that is reserved and was never written.
	unwritten bool
	// unsynced does not flush dirty pages first.
	unsynced bool

	request *fiemapRequest
	index   uint32
	done    bool
	// instead is set on a filesystem that has no FIEMAP.
	fallback ExtentReader
}

func (m *fiemapReader) Next(ctx context.Context) (Extent, bool, error) {
	for m.fallback == nil {
		if m.request == nil || m.index == m.request.mapped {
			if m.done || m.offset >= m.end {
				return Extent{}, false, nil
			}

			if err := m.load(ctx); err != nil {
				return Extent{}, false, err
			}

			continue
		}

		raw := &m.request.extents[m.index]
		m.index++

		if found, ok := m.translate(raw); ok {
			return found, true, nil
		}
	}

	return m.fallback.Next(ctx)
}

// load asks for the next page.
func (m *fiemapReader) load(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("map the extents of %s: %w", m.file.Name(), err)
	}

	if m.request == nil {
		m.request = &fiemapRequest{}
	}

	m.request.start, m.request.length = uint64(m.offset), uint64(m.end-m.offset)
	m.request.flags, m.request.extentCount, m.request.mapped = fiemapFlagSync, fiemapPage, 0
	m.index = 0

	if m.unsynced {
		m.request.flags = 0
	}

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, m.file.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(m.request)))

	switch errno {
	case 0:
	case unix.EOPNOTSUPP, unix.ENOTTY, unix.EBADR:
		m.fallback = &seekReader{file: m.file, offset: m.offset, end: m.end}

		return nil
	default:
		return fmt.Errorf("map the extents of %s from %d: %w", m.file.Name(), m.offset, errno)
	}

	return m.checkPage()
}

// checkPage decides whether the page was the last, and that the next begins
// behind it.
func (m *fiemapReader) checkPage() error {
	count := m.request.mapped
	if count == 0 {
		m.done = true

		return nil
	}

	last := &m.request.extents[count-1]
	if last.flags&fiemapExtentLast != 0 || int64(last.logical+last.length) >= m.end {
		m.done = true
	} else if int64(last.logical+last.length) <= m.offset {
		return fmt.Errorf("map the extents of %s from %d: %w", m.file.Name(), m.offset, errStuck)
	}

	return nil
}

var errStuck = errors.New("the filesystem answers with what is before that")

// take translates one extent and moves on behind it.
func (m *fiemapReader) translate(raw *fiemapExtent) (Extent, bool) {
	found := Extent{
		Start: int64(raw.logical), End: min(int64(raw.logical+raw.length), m.end), Physical: int64(raw.physical),
		Located: raw.flags&fiemapUnlocated == 0,
		Shared:  raw.flags&fiemapExtentShared != 0, Encoded: raw.flags&fiemapExtentEncoded != 0,
	}.From(m.offset)

	if found.End <= found.Start {
		return Extent{}, false
	}

	m.offset = found.End

	// Space that was reserved and never written reads as zeros, unless what was
	// written is still on its way there.
	if raw.flags&fiemapExtentUnwritten != 0 && found.Located && !m.unwritten {
		return Extent{}, false
	}

	return found, true
}

// Holes returns the ranges of the file's first size bytes that have no space in
// its filesystem. Space that is reserved and was never written is none of them,
// although SEEK_HOLE calls it one. The error is errors.ErrUnsupported on a
// filesystem without FIEMAP.
func Holes(file *os.File, size int64) ([]Range, error) {
	var holes []Range

	walked, at := &fiemapReader{file: file, end: size, unwritten: true}, int64(0)

	for {
		found, ok, err := walked.Next(context.Background())
		if err != nil {
			return nil, err
		}

		if walked.fallback != nil {
			return nil, errors.ErrUnsupported
		}

		if !ok {
			found.Start = size
		}

		if found.Start > at {
			holes = append(holes, Range{Offset: at, Length: found.Start - at})
		}

		if !ok {
			return holes, nil
		}

		at = found.End
	}
}

// sought finds the extents by SEEK_DATA; where they are it can't tell.
type seekReader struct {
	file        *os.File
	offset, end int64
}

func (s *seekReader) Next(ctx context.Context) (Extent, bool, error) {
	if err := ctx.Err(); err != nil {
		return Extent{}, false, fmt.Errorf("look for data in %s: %w", s.file.Name(), err)
	}

	if s.offset >= s.end {
		return Extent{}, false, nil
	}

	start, err := s.file.Seek(s.offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && start >= s.end {
		return Extent{}, false, nil
	}

	var end int64
	if err == nil {
		end, err = s.file.Seek(start, unix.SEEK_HOLE)
	}

	if err != nil {
		return Extent{}, false, fmt.Errorf("look for data in %s from %d: %w", s.file.Name(), s.offset, err)
	}

	s.offset = min(end, s.end)

	return Extent{Start: start, End: s.offset}, true, nil
}

// ComparablePhysical says whether one physical offset means the same bytes in both
// files. It is asked only of filesystems of which that is known; elsewhere (a
// stack of others, several devices with offsets of their own) equal offsets may
// be a coincidence.
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
		// Files may be on a realtime device, whose offsets begin at 0 too.
		var attributes fsxattr

		_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), fsIocFsGetXattr, uintptr(unsafe.Pointer(&attributes)))

		return stat.Dev, errno == 0 && attributes.xflags&fsXflagRealtime == 0, nil
	default:
		return 0, false, nil
	}
}
