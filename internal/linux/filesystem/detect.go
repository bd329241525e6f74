package filesystem

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
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

// readFrom reads from the image or device at a path.
func readFrom[T any](path string, read func(io.ReaderAt) (T, error)) (found T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return found, err
	}
	defer file.Close()

	return read(file)
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

var errNotBlank = errors.New("it holds data")

// IsBlank says whether a regular file or block device provably holds nothing:
// no data at all, or only zero bytes. Only what is blank may be formatted
// without asking. Where data is allocated it is read up to the first byte that
// is not zero, so a blank thick image or device costs a whole read.
func IsBlank(f *os.File) (bool, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, fmt.Errorf("size of %s: %w", f.Name(), err)
	}

	var buffer []byte

	err = extent.DataRanges(f, size, func(start, end int64) error {
		// A thin image that was never written, which is the rule, needs none.
		if buffer == nil {
			buffer = make([]byte, min(size, blankBuffer))
		}

		_, err := io.CopyBuffer(blankWriter{}, io.NewSectionReader(f, start, end-start), buffer)

		return err
	})
	if errors.Is(err, errNotBlank) {
		return false, nil
	}

	return err == nil, err
}

// blankWriter accepts only zeros.
type blankWriter struct{}

// Write returns errNotBlank unless the first byte is 0, and each other one is like that before it.
func (blankWriter) Write(p []byte) (int, error) {
	if p[0] != 0 || !bytes.Equal(p[1:], p[:len(p)-1]) {
		return 0, errNotBlank
	}

	return len(p), nil
}
