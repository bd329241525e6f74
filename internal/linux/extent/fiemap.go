package extent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/fs.h and linux/fiemap.h, which x/sys/unix lacks.
const (
	fsIocFiemap     = 0xc020660b // _IOWR('f', 11, struct fiemap)
	fsIocFsGetXattr = 0x801c581f // _IOR('X', 31, struct fsxattr)

	// fiemapFlagSync has the kernel write dirty pages first: until then the map does not include
	// them.
	fiemapFlagSync = 0x1

	fiemapExtentLast      = 0x1
	fiemapExtentUnknown   = 0x2
	fiemapExtentDelalloc  = 0x4
	fiemapExtentEncoded   = 0x8
	fiemapExtentNoPlace   = 0x100 // NOT_ALIGNED, which DATA_INLINE and DATA_TAIL imply
	fiemapExtentUnwritten = 0x800
	fiemapExtentShared    = 0x2000

	// fiemapUnlocated are the flags of extents whose fe_physical is not the exact offset.
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

// fiemapReader reads the extents page by page.
type fiemapReader struct {
	file        *os.File
	offset, end int64

	// unwritten includes preallocated extents.
	unwritten bool
	// flags are fiemapFlagSync or none.
	flags uint32

	request fiemapRequest
	done    bool
}

// extents yields the extents between offset and end, once. It ends after the first error, which is
// errors.ErrUnsupported on a filesystem without FIEMAP.
func (m *fiemapReader) extents(ctx context.Context) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for !m.done && m.offset < m.end {
			if err := m.load(ctx); err != nil {
				yield(Extent{}, err)

				return
			}

			for i := range m.request.mapped {
				if found, ok := m.translate(&m.request.extents[i]); ok && !yield(found, nil) {
					return
				}
			}
		}
	}
}

// load reads the next page.
func (m *fiemapReader) load(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("map the extents of %s: %w", m.file.Name(), err)
	}

	m.request.start, m.request.length = uint64(m.offset), uint64(m.end-m.offset)
	m.request.flags, m.request.extentCount, m.request.mapped = m.flags, fiemapPage, 0

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, m.file.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m.request)))

	switch errno {
	case 0:
		return m.checkPage()
	case unix.EOPNOTSUPP, unix.ENOTTY, unix.EBADR:
		return errors.ErrUnsupported
	default:
		return fmt.Errorf("map the extents of %s from %d: %w", m.file.Name(), m.offset, errno)
	}
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

var errStuck = errors.New("the filesystem returned extents before that offset")

// translate converts one extent and advances behind it.
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

	// Preallocated blocks read as zeros, unless delayed writes to them are under way.
	if raw.flags&fiemapExtentUnwritten != 0 && found.Located && !m.unwritten {
		return Extent{}, false
	}

	return found, true
}
