package filesystem_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
)

func (m *mounted) errors(tb testing.TB, name string) filesystem.ErrorCounts {
	tb.Helper()

	root, err := os.Open(m.directory)
	require.NoError(tb, err)

	defer root.Close()

	found, err := filesystem.ReadErrors(name, m.device.Number, root)
	require.NoError(tb, err)

	return found
}

// awaitErrors returns the errors once there are any.
func (m *mounted) awaitErrors(tb testing.TB, name string) filesystem.ErrorCounts {
	tb.Helper()

	require.Eventually(tb, func() bool { return m.errors(tb, name).Count > 0 }, 10*time.Second, time.Millisecond, "want: the error counter of the filesystem increases")

	return m.errors(tb, name)
}

func TestASoundFilesystemHasNoErrors(t *testing.T) {
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			use := mount(t, fs, newFilesystem(t, fs, imageSize), loop.AttachOptions{})
			use.write(t)
			require.Zero(t, use.errors(t, name), "want: a sound filesystem has no errors")
		})
	}
}

func TestErrorsOfAnUnmountedFilesystem(t *testing.T) {
	needRoot(t)

	device := attach(t, newFilesystem(t, byName(t, filesystem.Ext4), 64*mebibyte), loop.AttachOptions{})

	_, err := filesystem.ReadErrors(filesystem.Ext4, device.Number, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestExt4CountsErrors(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)

	for name, test := range map[string]struct {
		hurt func(image *os.File, at int64) error
		want func(filesystem.ErrorCounts) bool
	}{
		"what makes no sense": {
			func(image *os.File, at int64) error {
				_, err := image.WriteAt(bytes.Repeat([]byte{0xa5}, 4096), at)

				return err
			},
			func(e filesystem.ErrorCounts) bool { return e.Corrupted && !e.IO },
		},
		"what can't be read": {
			func(image *os.File, at int64) error { return image.Truncate(at) },
			func(e filesystem.ErrorCounts) bool { return e.IO && !e.Corrupted },
		},
	} {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, 64*mebibyte)
			// What the kernel clears later would grow the image again that was truncated.
			o := filesystem.MakeOptions{NoLazyInit: true}
			require.NoError(t, ext4.Make(t.Context(), image.Name(), o))

			use := mount(t, ext4, image, loop.AttachOptions{})
			// In a block of inodes that no other mount reads ahead.
			for i := range 800 {
				require.NoError(t, os.Mkdir(filepath.Join(use.directory, strconv.Itoa(i)), 0o700))
			}

			use.unmount(t)

			at := inodeOffset(t, image, "/799")
			use = mount(t, ext4, image, loop.AttachOptions{})
			// The directory shall be known: it may lie beyond the inode.
			_, err := os.ReadDir(use.directory)
			require.NoError(t, err)
			// So would what is written to the journal.
			require.NoError(t, filesystem.Sync(use.openToRead(t)))
			require.NoError(t, test.hurt(image, at))

			_, err = os.Stat(filepath.Join(use.directory, "799"))
			require.Error(t, err, "stat of a damaged inode")

			found := use.awaitErrors(t, filesystem.Ext4)
			require.True(t, test.want(found), "%+v", found)
		})
	}
}

// inodeOffset is where the block is in the image that has the inode of path.
func inodeOffset(t *testing.T, image *os.File, path string) int64 {
	t.Helper()

	output, err := child.Command(t, "debugfs", "-R", "imap "+path, image.Name()).CombinedOutput()
	require.NoError(t, err, "%s", output)

	found := regexp.MustCompile(`located at block (\d+)`).FindSubmatch(output)
	require.NotNil(t, found, "%s", output)

	block, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)

	return block * 4096
}

func TestErrorsStayWithExt4(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)
	use := mount(t, ext4, image, loop.AttachOptions{})
	trigger := fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", use.device.Number)
	require.NoError(t, os.WriteFile(trigger, []byte("1\n"), 0))
	require.Equal(t, uint64(1), use.awaitErrors(t, filesystem.Ext4).Count, "want: the error is counted once")
	use.unmount(t)

	use = mount(t, ext4, image, loop.AttachOptions{})
	require.Equal(t, filesystem.ErrorCounts{Count: 1, Corrupted: true}, use.errors(t, filesystem.Ext4))
}

func TestBtrfsCountsErrors(t *testing.T) {
	needRoot(t)

	btrfs := byName(t, filesystem.Btrfs)
	pattern := bytes.Repeat([]byte("pattern "), 64<<10/8)

	for name, test := range map[string]struct {
		hurt func(image *os.File, at int64) error
		want filesystem.ErrorCounts
	}{
		"what makes no sense": {
			func(image *os.File, at int64) error {
				_, err := image.WriteAt([]byte("otherwise"), at)

				return err
			},
			filesystem.ErrorCounts{Count: 1, Corrupted: true},
		},
		"what can't be read": {
			func(image *os.File, at int64) error { return image.Truncate(at) },
			filesystem.ErrorCounts{Count: 1, IO: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, btrfs, imageSize)
			use := mount(t, btrfs, image, loop.AttachOptions{})
			require.NoError(t, os.WriteFile(filepath.Join(use.directory, "data"), pattern, 0o600))
			use.unmount(t)

			content, err := unix.Mmap(int(image.Fd()), 0, int(imageSize), unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)

			at := bytes.Index(content, pattern)
			require.NoError(t, unix.Munmap(content))
			require.Positive(t, at, "want: the image contains the pattern")

			use = mount(t, btrfs, image, loop.AttachOptions{})
			require.NoError(t, test.hurt(image, int64(at)))

			file, err := os.Open(filepath.Join(use.directory, "data"))
			require.NoError(t, err)

			defer file.Close()

			_, err = file.Read(make([]byte, 4096))
			require.ErrorIs(t, err, unix.EIO)

			found := use.awaitErrors(t, filesystem.Btrfs)
			found.Count = 1 // how often it tries again is the kernel's affair
			require.Equal(t, test.want, found)
		})
	}
}
