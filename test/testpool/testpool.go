// Package testpool makes directories on filesystems of their own, for the pools of tests.
package testpool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// Reflink returns an empty directory on an XFS of its own that can reflink,
// of a sparse image of that many bytes. It goes with the test.
func Reflink(tb testing.TB, bytes int64) string {
	tb.Helper()

	return On(tb, bytes, "xfs", "-q", "-s", "size=4096", "-m", "reflink=1")
}

// Plain is Reflink on an ext4, whose files share no blocks.
func Plain(tb testing.TB, bytes int64) string {
	tb.Helper()

	return On(tb, bytes, "ext4", "-q", "-F", "-E", "nodiscard")
}

// Btrfs is Reflink on a btrfs, whose directory volumes are subvolumes with size limits.
func Btrfs(tb testing.TB, bytes int64) string {
	tb.Helper()

	return On(tb, bytes, "btrfs", "-q")
}

// InMemory returns an empty directory on a tmpfs, which makes thousands of directories in the time in which
// a disk's filesystem makes a hundred. It goes with the test.
func InMemory(tb testing.TB) string {
	tb.Helper()

	directory, err := os.MkdirTemp("/dev/shm", "touchstone-test-") //nolint:usetesting // not where TMPDIR is
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(directory)) })

	return directory
}

// On returns an empty directory on a filesystem of its own, which mkfs makes with the options on a sparse image
// of that many bytes. It goes with the test.
func On(tb testing.TB, bytes int64, fsType string, options ...string) string {
	tb.Helper()
	namespace.NeedRoot(tb)

	root := tb.TempDir()
	image, err := os.Create(filepath.Join(root, "pool.img"))
	require.NoError(tb, err)

	defer image.Close()

	require.NoError(tb, image.Truncate(bytes))

	output, err := child.Command(tb, "mkfs."+fsType, append(options, image.Name())...).CombinedOutput()
	require.NoError(tb, err, "%s", output)

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(tb.Context(), image, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	require.NoError(tb, err)

	defer device.Close()

	mounted := filepath.Join(root, "mounted")
	require.NoError(tb, os.Mkdir(mounted, 0o700))
	require.NoError(tb, unix.Mount(device.Path, mounted, fsType, 0, "discard"))
	// A process with an open file in there is the test's responsibility.
	tb.Cleanup(func() { require.NoError(tb, unix.Unmount(mounted, unix.MNT_DETACH)) })

	directory := filepath.Join(mounted, "pool")
	require.NoError(tb, os.Mkdir(directory, 0o700))

	return directory
}
