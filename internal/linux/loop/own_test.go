package loop_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// TestExclusiveAttachRefusesAnAttachedImage: with Exclusive an image that is attached already is
// refused, since it is another node's on the same machine, whose device a detach would take.
func TestExclusiveAttachRefusesAnAttachedImage(t *testing.T) {
	needRoot(t)

	image := newImage(t, mebibyte)
	device := attach(t, loop.NewLoops(loop.LoopsOptions{First: first}), image, none())

	other := loop.NewLoops(loop.LoopsOptions{First: first})

	shared, err := other.Attach(t.Context(), image, loop.AttachOptions{PreferredNumber: -1, Exclusive: true})
	if err == nil {
		require.NoError(t, shared.Close())
	}

	require.ErrorIs(t, err, loop.ErrImageLocked, "attach with Exclusive an image that is attached to loop%d", device.Number)
}

// TestIdentityIncludesTheFilesystem: two files with the same name and the same inode
// number are two images.
func TestIdentityIncludesTheFilesystem(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	one, two := imageOnTmpfs(t), imageOnTmpfs(t)

	oneIs, err := loop.IdentityOf(one)
	require.NoError(t, err)
	twoIs, err := loop.IdentityOf(two)
	require.NoError(t, err)

	if oneIs.Inode != twoIs.Inode {
		t.Skip("this kernel's tmpfs gives no inode number twice")
	}

	device := attach(t, loops, one, none())

	found, err := loops.Find(two)
	require.NoError(t, err)
	require.Empty(t, found, "the devices of an image that is attached nowhere; one with its inode number is at loop%d", device.Number)

	found, err = loops.Find(one)
	require.NoError(t, err)
	require.Len(t, found, 1, "the devices of the image at loop%d", device.Number)
}

// imageOnTmpfs makes an image on a filesystem of its own, which stays until the
// image's descriptor is closed.
func imageOnTmpfs(t *testing.T) *os.File {
	t.Helper()

	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))

	file, err := os.Create(filepath.Join(dir, "volume.img"))
	if err == nil {
		err = file.Truncate(mebibyte)
	}

	require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })

	return file
}
