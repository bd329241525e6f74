package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
)

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
