package filesystem_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func TestDetectFindsNoFilesystem(t *testing.T) {
	for name, content := range map[string][]byte{
		"empty":         nil,
		"one byte":      {0},
		"short":         []byte("XFS"),
		"zeros":         make([]byte, 128<<10),
		"cut ext4":      append(make([]byte, 1024+0x38), 0x53),
		"text":          bytes.Repeat([]byte("text"), 32<<10),
		"xfs elsewhere": append([]byte{0}, "XFSB"...),
	} {
		found, err := filesystem.Detect(bytes.NewReader(content))
		require.NoError(t, err, name)
		require.Empty(t, found, name)
	}
}

type brokenReader struct{}

var errBroken = errors.New("broken")

func (brokenReader) ReadAt([]byte, int64) (int, error) { return 0, errBroken }

func TestAnUnreadableDeviceIsNotAnEmptyOne(t *testing.T) {
	_, err := filesystem.Detect(brokenReader{})
	require.ErrorIs(t, err, errBroken)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			_, err := fs.SizeBytes(brokenReader{})
			require.ErrorIs(t, err, errBroken)
		})
	}
}

func TestSizeNeedsASuperblock(t *testing.T) {
	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			for _, length := range []int{0, 3, 1080, 2048, 128 << 10} {
				_, err := fs.SizeBytes(bytes.NewReader(make([]byte, length)))
				require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
			}
		})
	}
}

func TestSizesBeyond32Bits(t *testing.T) {
	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			super := superblock(fs.Name(), 1<<33, 4096)
			want := int64(1<<33) * 4096

			got, err := fs.SizeBytes(bytes.NewReader(super))
			require.NoError(t, err)
			require.Equal(t, want, got, "want: the size has all of its 64 bits")

			_, err = fs.SizeBytes(bytes.NewReader(superblock(fs.Name(), math.MaxUint64, 4096)))
			require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
		})
	}
}

// superblock writes one by hand, after the kernel's headers.
func superblock(name string, blocks, blockSize uint64) []byte {
	content := make([]byte, 128<<10)

	switch name {
	case filesystem.Ext4:
		super := content[1024:]
		copy(super[0x38:], "\x53\xef")
		binary.LittleEndian.PutUint32(super[0x04:], uint32(blocks))
		binary.LittleEndian.PutUint32(super[0x150:], uint32(blocks>>32))
		binary.LittleEndian.PutUint32(super[0x60:], 0x80)
		binary.LittleEndian.PutUint32(super[0x18:], 2)
	case filesystem.XFS:
		copy(content, "XFSB")
		binary.BigEndian.PutUint32(content[4:], uint32(blockSize))
		binary.BigEndian.PutUint64(content[8:], blocks)
	case filesystem.Btrfs:
		super := content[64<<10:]
		binary.LittleEndian.PutUint64(super[0x30:], 64<<10)
		copy(super[0x40:], "_BHRfS_M")

		if blocks > math.MaxUint64/blockSize {
			blockSize = 1
		}

		binary.LittleEndian.PutUint64(super[0x70:], blocks*blockSize)
	}

	return content
}

func TestIsBlank(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, image *os.File)
		blank   bool
	}{
		"sparse":        {func(*testing.T, *os.File) {}, true},
		"empty":         {func(t *testing.T, f *os.File) { t.Helper(); require.NoError(t, f.Truncate(0)) }, true},
		"allocated":     {allocate, true},
		"zeros written": {func(t *testing.T, f *os.File) { t.Helper(); write(t, f, make([]byte, 3*mebibyte), 5) }, true},
		"first byte":    {func(t *testing.T, f *os.File) { t.Helper(); write(t, f, []byte{1}, 0) }, false},
		"last byte":     {func(t *testing.T, f *os.File) { t.Helper(); write(t, f, []byte{1}, 8*mebibyte-1) }, false},
		"after zeros":   {func(t *testing.T, f *os.File) { t.Helper(); write(t, f, append(make([]byte, 3*mebibyte), 1), 7) }, false},
		"beyond a hole": {func(t *testing.T, f *os.File) {
			t.Helper()
			write(t, f, make([]byte, 1), 0)
			write(t, f, []byte{1}, 6*mebibyte)
		}, false},
		"unknown content": {func(t *testing.T, f *os.File) { t.Helper(); write(t, f, []byte("LUKS"), 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, 8*mebibyte)
			test.prepare(t, image)

			blank, err := filesystem.IsBlank(image)
			require.NoError(t, err)
			require.Equal(t, test.blank, blank, "want: an image is blank if it has zeros only")
		})
	}
}

func TestIsBlankOfADevice(t *testing.T) {
	needRoot(t)

	device := attach(t, newImage(t, 8*mebibyte), loop.AttachOptions{})

	blank, err := filesystem.IsBlank(device.File())
	require.NoError(t, err)
	require.True(t, blank, "want: IsBlank takes the device for blank")

	write(t, device.File(), bytes.Repeat([]byte{7}, 4096), 4*mebibyte)

	blank, err = filesystem.IsBlank(device.File())
	require.NoError(t, err)
	require.False(t, blank, "want: IsBlank does not take the device for blank")
}

func TestNoFilesystemIsBlank(t *testing.T) {
	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			blank, err := filesystem.IsBlank(newFilesystem(t, fs, imageSize))
			require.NoError(t, err)
			require.False(t, blank, "want: IsBlank does not take the device for blank")
		})
	}
}

func allocate(t *testing.T, file *os.File) {
	t.Helper()
	require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 0, 8*mebibyte))
}

func write(t *testing.T, file *os.File, content []byte, at int64) {
	t.Helper()

	_, err := file.WriteAt(content, at)
	require.NoError(t, err)
}

func FuzzDetect(f *testing.F) {
	for _, name := range filesystem.Names() {
		f.Add(superblock(name, 1<<20, 4096))
	}

	f.Add([]byte("XFSB"))
	f.Fuzz(func(t *testing.T, content []byte) {
		name, err := filesystem.Detect(bytes.NewReader(content))
		require.NoError(t, err)

		if name != "" {
			require.Contains(t, filesystem.Names(), name)
		}
	})
}

func FuzzSize(f *testing.F) {
	for _, name := range filesystem.Names() {
		f.Add(superblock(name, 1<<20, 4096)[:2048], 0)
		f.Add(superblock(name, math.MaxUint64, 4096)[64<<10:][:2048], 64<<10)
	}

	f.Fuzz(func(t *testing.T, content []byte, at int) {
		at = max(0, min(at, 64<<10))
		whole := append(make([]byte, at), content...)

		for _, name := range filesystem.Names() {
			size, err := byName(t, name).SizeBytes(bytes.NewReader(whole))
			if err != nil {
				require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
			} else {
				require.Positive(t, size, "want: a superblock that is read has a size")
			}
		}
	})
}
