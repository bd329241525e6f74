package btrfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	os.Exit(namespace.Main(m))
}

// mounted returns the mount target of a fresh btrfs.
func mounted(t *testing.T) string {
	t.Helper()
	namespace.NeedRoot(t)

	image, err := os.Create(filepath.Join(t.TempDir(), "filesystem.img"))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(256<<20))

	output, err := child.Command(t, "mkfs.btrfs", "-q", image.Name()).CombinedOutput()
	require.NoError(t, err, "%s", output)

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	require.NoError(t, err)

	defer device.Close()

	target := t.TempDir()
	require.NoError(t, unix.Mount(device.Path, target, "btrfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) })

	return target
}

func open(t *testing.T, path string) *os.File {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })

	return file
}

func requireSubvolume(t *testing.T, want bool, path string) {
	t.Helper()

	is, err := btrfs.IsSubvolume(open(t, path))
	require.NoError(t, err)
	require.Equal(t, want, is, "%s is a subvolume", path)
}

// TestSnapshotHasTheContentOfItsSource makes, copies and removes subvolumes.
func TestSnapshotHasTheContentOfItsSource(t *testing.T) {
	t.Parallel()

	top := mounted(t)
	parent := open(t, top)

	require.NoError(t, btrfs.Create(parent, "a"))
	require.ErrorIs(t, btrfs.Create(parent, "a"), fs.ErrExist)
	require.NoError(t, os.Mkdir(filepath.Join(top, "plain"), 0o700))
	requireSubvolume(t, true, top)
	requireSubvolume(t, true, filepath.Join(top, "a"))
	requireSubvolume(t, false, filepath.Join(top, "plain"))
	requireSubvolume(t, false, "/")

	file := filepath.Join(top, "a", "file")
	require.NoError(t, os.WriteFile(file, []byte("before"), 0o600))
	require.NoError(t, btrfs.Snapshot(open(t, filepath.Join(top, "a")), parent, "b"))
	require.ErrorIs(t, btrfs.Snapshot(open(t, filepath.Join(top, "a")), parent, "b"), fs.ErrExist)
	require.NoError(t, os.WriteFile(file, []byte("after"), 0o600))

	read, err := os.ReadFile(filepath.Join(top, "b", "file"))
	require.NoError(t, err)
	require.Equal(t, "before", string(read))

	require.NoError(t, btrfs.Create(open(t, filepath.Join(top, "b")), "inside"))
	require.ErrorIs(t, btrfs.Destroy(parent, "b"), unix.ENOTEMPTY)
	require.NoError(t, btrfs.Destroy(open(t, filepath.Join(top, "b")), "inside"))
	require.NoError(t, btrfs.Destroy(parent, "b"))
	require.NoDirExists(t, filepath.Join(top, "b"))
	require.ErrorIs(t, btrfs.Destroy(parent, "b"), fs.ErrNotExist)
	require.Error(t, btrfs.Destroy(parent, "plain"), "want: a plain directory is not destroyed as a subvolume")
	require.ErrorIs(t, btrfs.Create(parent, strings.Repeat("n", 5000)), unix.ENAMETOOLONG)
}

// TestOpenRootFindsTheSubvolume of a directory, and refuses where it is not mounted.
func TestOpenRootFindsTheSubvolume(t *testing.T) {
	t.Parallel()

	top := mounted(t)
	require.NoError(t, btrfs.Create(open(t, top), "a"))

	inside := filepath.Join(top, "a", "b", "c")
	require.NoError(t, os.MkdirAll(inside, 0o700))

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(inside, link))

	for _, path := range []string{inside, link} {
		root, within, err := btrfs.OpenRoot(path)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(top, "a"), root.Name())
		require.Equal(t, filepath.Join("b", "c"), within)
		require.NoError(t, root.Close())
	}

	root, within, err := btrfs.OpenRoot(filepath.Join(top, "a"))
	require.NoError(t, err)
	require.Equal(t, ".", within)
	require.NoError(t, root.Close())

	bound := t.TempDir()
	require.NoError(t, unix.Mount(inside, bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH)) })

	_, _, err = btrfs.OpenRoot(bound)
	require.ErrorIs(t, err, btrfs.ErrRootHidden)

	_, _, err = btrfs.OpenRoot(filepath.Join(top, "missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}
