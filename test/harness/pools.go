package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// ReflinkPool returns an empty directory on an XFS of its own that can reflink,
// of a sparse image of that many bytes. It goes with the test.
func ReflinkPool(tb testing.TB, bytes int64) string {
	tb.Helper()

	return ownPool(tb, bytes, "xfs", "-q", "-s", "size=4096", "-m", "reflink=1")
}

// PlainPool is ReflinkPool on an ext4, whose files share no blocks.
func PlainPool(tb testing.TB, bytes int64) string {
	tb.Helper()

	return ownPool(tb, bytes, "ext4", "-q", "-F", "-E", "nodiscard")
}

// BtrfsPool is ReflinkPool on a btrfs, whose directory volumes are subvolumes with size limits.
func BtrfsPool(tb testing.TB, bytes int64) string {
	tb.Helper()

	return ownPool(tb, bytes, "btrfs", "-q")
}

func ownPool(tb testing.TB, bytes int64, fsType string, options ...string) string {
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

// SmallPool starts a driver whose pool has so many bytes, in a filesystem of its own.
func SmallPool(t *testing.T, bytes int64, more ...Option) *Driver {
	t.Helper()

	pool := t.TempDir()
	require.NoError(t, unix.Mount("none", pool, "tmpfs", 0, "size="+strconv.FormatInt(bytes+IdentityBytes, 10)))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(pool, unix.MNT_DETACH)) })

	d := Start(t, append(more, func(c *driver.Config) { c.Pools = map[string]string{"default": pool} })...)
	EraseName(t, d)

	return d
}

// EraseName takes a block back that the tests need not count: the driver's name
// in its pool.
func EraseName(t *testing.T, d *Driver) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(d.Pool(), "controller.lock"), 0))
}

// IdentityBytes is what the identity of a pool takes of its filesystem.
const IdentityBytes = 4096

// RequireEntries counts the entries in directories of the pool.
func RequireEntries(t *testing.T, d *Driver, counts map[string]int) {
	t.Helper()

	for room, count := range counts {
		found, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Len(t, found, count, room)
	}
}
