package extent

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
	// unsynced does not write dirty pages first.
	unsynced bool

	request *fiemapRequest
	index   uint32
	done    bool
	// fallback is set on a filesystem without FIEMAP.
	fallback Reader
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

// load reads the next page.
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
