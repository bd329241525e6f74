package filesystem_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	mounts "github.com/touchstone-csi/touchstone/internal/linux/mount"
)

func TestFrozenHasAllWrites(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			source := newFilesystem(t, fs, imageSize)
			mounted := mount(t, fs, source, loop.AttachOptions{})
			root := mounted.openToRead(t)
			require.NoError(t, filesystem.Sync(root))
			require.ErrorIs(t, filesystem.Thaw(root), filesystem.ErrNotFrozen)

			// Not synced: that is what freezing does.
			require.NoError(t, os.WriteFile(filepath.Join(mounted.directory, "late"), []byte("late"), 0o600))
			require.NoError(t, filesystem.Freeze(root))
			t.Cleanup(func() { _ = filesystem.Thaw(root) })
			require.ErrorIs(t, filesystem.Freeze(root), filesystem.ErrFrozen)

			copied := copyOf(t, source)

			require.NoError(t, filesystem.Thaw(root))
			require.ErrorIs(t, filesystem.Thaw(root), filesystem.ErrNotFrozen)

			replay(t, fs, copied)

			device, directory := attach(t, copied, loop.AttachOptions{}), t.TempDir()
			require.NoError(t, fs.SetUUID(t.Context(), device.Path, "01a20000-0000-7000-8000-000000000000"))
			require.NoError(t, unix.Mount(device.Path, directory, fs.Name(), unix.MS_RDONLY, ""))
			t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })

			late, err := os.ReadFile(filepath.Join(directory, "late"))
			require.NoError(t, err)
			require.Equal(t, "late", string(late))
		})
	}
}

// TestCheckThawed sees a freeze without one of its own, and changes no option of the filesystem.
func TestCheckThawed(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			mounted := mount(t, fs, newFilesystem(t, fs, imageSize), loop.AttachOptions{})
			root := mounted.openToRead(t)
			options := func() string {
				point, err := mounts.PointOf(root)
				require.NoError(t, err)

				return strings.Join(point.SuperOptions, ",")
			}
			before := options()

			require.NoError(t, filesystem.CheckThawed(root), "a filesystem that is not frozen")
			require.ErrorIs(t, filesystem.Thaw(root), filesystem.ErrNotFrozen, "want: the check does not freeze")

			require.NoError(t, filesystem.Freeze(root))
			t.Cleanup(func() { _ = filesystem.Thaw(root) })
			require.ErrorIs(t, filesystem.CheckThawed(root), filesystem.ErrFrozen, "a frozen filesystem")
			require.NoError(t, filesystem.Thaw(root), "want: the check does not thaw")

			require.NoError(t, filesystem.CheckThawed(root), "a thawed filesystem")
			require.Equal(t, before, options(), "the options of the filesystem after three checks")
		})
	}
}
