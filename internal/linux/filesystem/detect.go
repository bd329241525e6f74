package filesystem

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// Detect returns the name of the filesystem by its superblock's magic number alone, "" where there
// is none of the supported ones. Whether a device may be formatted is another question: see IsBlank.
func Detect(r io.ReaderAt) (string, error) {
	for _, candidate := range inDetectionOrder {
		found, err := readAt(r, candidate.magicOffset, len(candidate.magic))
		if err != nil {
			return "", fmt.Errorf("detect the filesystem: %w", err)
		}

		if string(found) == candidate.magic {
			return candidate.name, nil
		}
	}

	return "", nil
}

// readAt reads what lies at offset, or nil where the file is too short for it.
func readAt(r io.ReaderAt, offset int64, length int) ([]byte, error) {
	buffer := make([]byte, length)

	n, err := r.ReadAt(buffer, offset)
	if n == length {
		return buffer, nil
	}

	if err == nil || errors.Is(err, io.EOF) {
		return nil, nil
	}

	return nil, fmt.Errorf("read %d bytes at %d: %w", length, offset, err)
}

// multiplySize multiplies what a superblock says, which may be anything.
func multiplySize(name string, blocks, blockSize uint64) (int64, error) {
	high, low := bits.Mul64(blocks, blockSize)
	if high != 0 || low > 1<<63-1 || low == 0 {
		return 0, fmt.Errorf("%s: %w: %d blocks of %d bytes", name, ErrNoSuperblock, blocks, blockSize)
	}

	return int64(low), nil
}

func plausibleBlockSize(size uint64) bool {
	return size >= 512 && size <= 65536 && bits.OnesCount64(size) == 1
}

const blankBuffer = 1 << 20

// IsBlank says whether a regular file or block device provably holds nothing:
// no data at all, or only zero bytes. Only what is blank may be formatted
// without asking. Where data is allocated it is read up to the first byte that
// is not zero, so a blank thick image or device costs a whole read.
func IsBlank(f *os.File) (bool, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, fmt.Errorf("size of %s: %w", f.Name(), err)
	}

	var buffer, zeros []byte

	for offset := int64(0); offset < size; {
		start, end, err := nextData(f, offset, size)
		if err != nil {
			return false, err
		}

		// A thin image that was never written, which is the rule, needs none.
		if start < end && buffer == nil {
			buffer, zeros = make([]byte, min(size, blankBuffer)), make([]byte, min(size, blankBuffer))
		}

		zero, err := isZero(f, start, end, buffer, zeros)
		if err != nil || !zero {
			return false, err
		}

		offset = end
	}

	return true, nil
}

// nextData returns the next range that may hold data; it is empty at the end
// when there is none.
func nextData(f *os.File, offset, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)

	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
		// A filesystem or device that does not know holes: all may be data.
		return offset, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("find data in %s: %w", f.Name(), err)
	}

	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find a hole in %s: %w", f.Name(), err)
	}

	return start, end, nil
}

func isZero(r io.ReaderAt, start, end int64, buffer, zeros []byte) (bool, error) {
	for start < end {
		part := buffer[:min(int64(len(buffer)), end-start)]

		n, err := r.ReadAt(part, start)
		if !bytes.Equal(part[:n], zeros[:n]) {
			return false, nil
		}

		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read for data: %w", err)
		}

		if n == 0 {
			// Truncated under us: there is nothing more that could be data.
			return true, nil
		}

		start += int64(n)
	}

	return true, nil
}
