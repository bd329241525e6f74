package embedded_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// TestFullPoolFailsWrites: once the pool is full, a volume's write fails, and none is acknowledged and
// lost. The loop driver reports a write that the filesystem shortens as complete, so that the
// filesystem has to be mounted with options with which it shortens none. It shortens one where the
// free space ends within a block, which is never so with blocks that divide it.
func TestFullPoolFailsWrites(t *testing.T) { onEach(t, testFullPoolFailsWrites) }

func testFullPoolFailsWrites(t *testing.T, kind string) {
	for name, block := range map[string]int{"blocks of 64 KiB": 64 << 10, "blocks of 300 KiB": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			pool := ensure(t, kind, newDirectory(t), small)
			volume := filepath.Join(pool.Directory(), "volume")
			empty(t, volume, larger)

			acknowledged, failed := overwrite(t, volume, block)
			require.NotEmpty(t, acknowledged, "want: writes succeed until the pool is full")
			require.Positive(t, failed, "want: the pool is full")

			file, err := os.Open(volume)
			require.NoError(t, err)

			defer file.Close()

			require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))

			got := make([]byte, block)

			for _, number := range acknowledged {
				_, err := file.ReadAt(got, int64(number)*int64(block))
				require.NoError(t, err)
				require.True(t, bytes.Equal(pattern(make([]byte, block), number), got), "block %d was acknowledged and is lost", number)
			}
		})
	}
}

// overwrite writes all of an image through a loop device, with direct I/O, and returns the numbers of
// the blocks whose write succeeded, and how many failed.
func overwrite(t *testing.T, path string, block int) (acknowledged []int, failed int) {
	t.Helper()

	image, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	loops := loop.NewLoops(loop.LoopsOptions{})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)

	defer func() {
		require.NoError(t, device.Close())
		require.NoError(t, loops.DetachSame(context.WithoutCancel(t.Context()), device.Status))
	}()

	raw, err := os.OpenFile(device.Path, os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)

	defer raw.Close()

	buffer, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)

	defer func() { require.NoError(t, unix.Munmap(buffer)) }()

	for number := range int(size(t, path)) / block {
		if _, err := raw.WriteAt(pattern(buffer, number), int64(number)*int64(block)); err != nil {
			failed++

			continue
		}

		acknowledged = append(acknowledged, number)
	}

	// It may fail, as some writes did: those that were acknowledged must be there.
	_ = raw.Sync()

	return acknowledged, failed
}

// pattern fills a block with its number.
func pattern(block []byte, number int) []byte {
	for at := 0; at < len(block); at += 8 {
		binary.LittleEndian.PutUint64(block[at:], uint64(number)<<8|1)
	}

	return block
}
