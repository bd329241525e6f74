package filesystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// template is what mkfs has written into a file of zeros. It does not change.
type template struct {
	key     templateKey
	written []fragment
}

// fragment is a part of a filesystem.
type fragment struct {
	offset int64
	data   []byte
	// reserved is how many bytes from offset mkfs allocates, written or not; 0 for the data only.
	reserved int64
}

const (
	// chunkBytes are kept together. It is the size of a node of btrfs.
	chunkBytes = 16 << 10
	// maxTemplateScan bounds what is read to find the written blocks.
	maxTemplateScan = 64 << 20
)

var errTooLarge = errors.New("too much was written for a template")

// readTemplate reads a filesystem that mkfs has just made in a file of zeros.
func readTemplate(key templateKey, path string) (made *template, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	row, _ := typeByName(key.filesystem)
	if _, err := row.personalize(file, uuid.New()); err != nil {
		return nil, err
	}

	made = &template{key: key}
	made.written, err = readWritten(file, key.sizeBytes, row.reserveZeros)

	return made, err
}

// readWritten returns the chunks of a file that have anything but zeros, and where the others are to
// be reserved.
func readWritten(file *os.File, size int64, reserveZeros bool) ([]fragment, error) {
	var (
		found         []fragment
		scanned, kept int64
		zeros         [chunkBytes]byte
		buffer        = make([]byte, chunkBytes)
	)

	err := extent.DataRanges(file, size, func(start, end int64) error {
		if scanned += end - start; scanned > maxTemplateScan {
			return errTooLarge
		}

		if reserveZeros {
			found = append(found, fragment{offset: start, reserved: end - start})
		}

		for offset := start; offset < end; offset += chunkBytes {
			n, err := file.ReadAt(buffer[:min(chunkBytes, end-offset)], offset)
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}

			if bytes.Equal(buffer[:n], zeros[:n]) {
				continue
			}

			if kept += int64(n); kept > maxTemplateBytes {
				return errTooLarge
			}

			found = appendChunk(found, offset, buffer[:n])
		}

		return nil
	})

	return found, err
}

// appendChunk adds a chunk to the last fragment, if that ends there, or as a new one.
func appendChunk(fragments []fragment, offset int64, chunk []byte) []fragment {
	if n := len(fragments); n > 0 && fragments[n-1].end() == offset {
		fragments[n-1].data = append(fragments[n-1].data, chunk...)

		return fragments
	}

	return append(fragments, fragment{offset: offset, data: bytes.Clone(chunk)})
}

// size returns how many bytes of memory the fragments take.
func (t *template) size() (total int) {
	for _, each := range t.written {
		total += cap(each.data)
	}

	return total
}

func (f fragment) end() int64 { return f.offset + int64(len(f.data)) }

// write writes the filesystem, with a new UUID, into a file of zeros of the same size.
func (t *template) write(ctx context.Context, path string) (err error) {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	if err := t.put(file, t.written); err != nil {
		return err
	}

	row, _ := typeByName(t.key.filesystem)

	own, err := row.personalize(file, uuid.New())
	if err != nil {
		return err
	}

	return t.put(file, own)
}

// put reserves and writes fragments.
func (t *template) put(file *os.File, fragments []fragment) error {
	// All of a thick image is allocated already, and XFS requires the whole range as free space.
	if !t.key.thick {
		if err := reserve(file, fragments); err != nil {
			return err
		}
	}

	for _, each := range fragments {
		if _, err := file.WriteAt(each.data, each.offset); err != nil {
			return err
		}
	}

	return nil
}

// reserve allocates what mkfs allocates, where the file's filesystem can.
func reserve(file *os.File, fragments []fragment) error {
	for _, each := range fragments {
		if each.reserved == 0 {
			continue
		}

		err := eintr.Retry(func() error {
			return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, each.offset, each.reserved)
		})
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("allocate %d bytes at %d: %w", each.reserved, each.offset, err)
		}
	}

	return nil
}
