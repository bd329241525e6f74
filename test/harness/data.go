package harness

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// WriteThrough writes one block, and returns when it is on the device.
func WriteThrough(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}

	_, err = file.Write(make([]byte, 4096))

	return errors.Join(err, file.Sync(), file.Close())
}

// ImageSum is the checksum of an image. What is zero does not count, so that
// holes need not be read.
func ImageSum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()

	const blockBytes = 4096

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	hash := sha256.New()
	chunk, zeros := make([]byte, MiB), make([]byte, blockBytes)

	for end := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return [sha256.Size]byte(hash.Sum(nil))
		}

		require.NoError(t, err)

		n, err := file.ReadAt(chunk, start)
		if !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}

		for block := range slices.Chunk(chunk[:n], blockBytes) {
			if !bytes.Equal(block, zeros[:len(block)]) {
				fmt.Fprintln(hash, start)
				hash.Write(block)
			}

			start += int64(len(block))
		}

		end = start
	}
}

// Overwrite replaces a part of a file, durably.
func Overwrite(t *testing.T, path string, offset int64, data []byte) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(data, offset)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

// Random returns so many random bytes.
func Random(t *testing.T, size int) []byte {
	t.Helper()

	data := make([]byte, size)
	_, err := rand.Read(data)
	require.NoError(t, err)

	return data
}

// WriteBlock writes the block that RequireBlock requires, durably.
func WriteBlock(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	block := make([]byte, 4096)
	copy(block, "precious")

	file, err := os.OpenFile(DataPath(claim), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = file.Write(block)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

// RequireBlock requires that a published volume has what WriteBlock wrote.
func RequireBlock(t *testing.T, claim *csiclient.Publication) {
	t.Helper()
	require.Equal(t, "precious", string(ReadBlock(t, DataPath(claim))[:len("precious")]))
}

// DataPath is a path at which a published volume is written: the device or a file in it.
func DataPath(claim *csiclient.Publication) string {
	if claim.Capability.GetBlock() != nil {
		return claim.TargetPath
	}

	return filepath.Join(claim.TargetPath, "data")
}

// ReadBlock reads past the page cache of the device, which a second device of
// the same image does not share.
func ReadBlock(t *testing.T, path string) []byte {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()
	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))

	block := make([]byte, 4096)
	_, err = file.ReadAt(block, 0)
	require.NoError(t, err)

	return block
}
