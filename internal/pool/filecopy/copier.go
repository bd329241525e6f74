package filecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

const (
	// chunkBytes is how much is copied between two checks of the context.
	chunkBytes = 16 << 20
	// bufferBytes is the size of a read or write if the kernel cannot copy by itself.
	bufferBytes = 1 << 20
	// blockBytes is the size of a block of zeros that becomes a hole.
	blockBytes = 4096
)

// Copier copies the content of files, in the kernel (copy_file_range) if that is supported.
type Copier struct {
	// buffer is allocated once copy_file_range is not supported.
	buffer []byte
	// Copied, unless nil, is called with the number of bytes that were copied.
	Copied func(n int64)
	// unwritten is the number of bytes for which writeback was not started.
	unwritten int64
}

// ReportTo has progress called with the bytes copied so far, of total.
func (m *Copier) ReportTo(progress func(done, total int64), total int64) {
	var done int64

	progress(0, total)

	m.Copied = func(n int64) {
		// A source that is written meanwhile may grow.
		done = min(done+n, total)
		progress(done, total)
	}
}

// Copy copies the data in the first size bytes of source to the same offsets of target, which reads
// as zeros there.
func (m *Copier) Copy(ctx context.Context, target, source *os.File, size int64) error {
	return extent.DataRanges(source, size, func(start, end int64) error {
		for start < end {
			if ctx.Err() != nil {
				return ctx.Err()
			}

			moved, err := m.copyChunk(target, source, start, min(end-start, chunkBytes))
			if err != nil {
				return err
			}

			if moved == 0 {
				return nil // the source has become shorter
			}

			if m.Copied != nil {
				m.Copied(moved)
			}

			m.startWriteback(target, moved)

			start += moved
		}

		return nil
	})
}

// startWriteback starts writeback during the copy: a single sync at its end would delay all other
// users of the disk.
func (m *Copier) startWriteback(target *os.File, moved int64) {
	if m.unwritten += moved; m.unwritten < chunkBytes {
		return
	}

	m.unwritten = 0
	// The final sync returns the errors.
	_ = unix.SyncFileRange(int(target.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

func (m *Copier) copyChunk(target, source *os.File, at, length int64) (int64, error) {
	if m.buffer != nil {
		return m.copyBuffered(target, source, at, length)
	}

	copied, err := eintr.RetryValue(func() (int, error) {
		from, to := at, at

		return unix.CopyFileRange(int(source.Fd()), &from, int(target.Fd()), &to, int(length), 0)
	})

	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		m.buffer = make([]byte, bufferBytes)

		return m.copyBuffered(target, source, at, length)
	case err != nil:
		return 0, fmt.Errorf("copy_file_range: %w", err)
	default:
		return int64(copied), nil
	}
}

// copyBuffered copies through the buffer and skips blocks of zeros.
func (m *Copier) copyBuffered(target, source *os.File, at, length int64) (int64, error) {
	var passed int64

	for passed < length {
		wanted := m.buffer[:min(length-passed, bufferBytes)]

		read, err := source.ReadAt(wanted, at+passed)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}

		if err := writeSparse(target, wanted[:read], at+passed); err != nil {
			return 0, err
		}

		passed += int64(read)

		if read < len(wanted) {
			break // the source has become shorter
		}
	}

	return passed, nil
}

// writeSparse writes content except for its blocks of zeros.
func writeSparse(target *os.File, content []byte, at int64) error {
	zeros := make([]byte, blockBytes)
	start := 0 // of what is to be written

	for block := 0; block < len(content); block += blockBytes {
		end := min(block+blockBytes, len(content))
		if !bytes.Equal(content[block:end], zeros[:end-block]) {
			continue
		}

		if _, err := target.WriteAt(content[start:block], at+int64(start)); err != nil {
			return err
		}

		start = end
	}

	_, err := target.WriteAt(content[start:], at+int64(start))

	return err
}
