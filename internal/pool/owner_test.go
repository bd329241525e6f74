package pool_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// TestFilledImageKeepsItsOwner is for a controller that is not root, beside a
// node that has to be.
func TestFilledImageKeepsItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}

	t.Parallel()

	const size = 1 << 20

	for _, want := range [][]uint32{{otherUser, otherUser}, {0, otherUser}, {otherUser, 0}} {
		directory := t.TempDir()
		place := openPool(t, directory)

		id := volume.NewID()
		require.NoError(t, place.Images.Create(id, size, false))

		image := filepath.Join(directory, "images", id+layout.ImageSuffix)
		require.NoError(t, os.Chown(image, int(want[0]), int(want[1])))
		require.NoError(t, refill(place, id, false, func(path string) error { return os.WriteFile(path, []byte("filled"), 0o600) }))

		content, err := os.ReadFile(image)
		require.NoError(t, err)
		require.Contains(t, string(content), "filled")

		info, err := os.Stat(image)
		require.NoError(t, err)

		owner, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok, "want: the file has a stat")
		require.Equal(t, want, []uint32{owner.Uid, owner.Gid}, "want: the filled image keeps its owner and its group")
	}
}

// TestSubdirectoriesHaveThePoolsOwner, for the same controller, whose node has started first; also
// after a node that was killed half way.
func TestSubdirectoriesHaveThePoolsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}

	t.Parallel()

	const somebody, other = 65534, 65533

	above := t.TempDir()
	directory := filepath.Join(above, "pool")
	in := func(names ...string) string { return filepath.Join(append([]string{directory}, names...)...) }
	open := func() {
		opened, err := pool.Open("shared", directory, pool.Options{})
		require.NoError(t, err)
		require.NoError(t, opened.Close())
	}
	requireOwner := func(want uint32, path string) {
		info, err := os.Stat(path)
		require.NoError(t, err)

		owner, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok, "want: the file has a stat")
		require.Equal(t, want, owner.Uid, path)
		require.Equal(t, want, owner.Gid, path)
	}

	require.NoError(t, os.Chown(above, somebody, somebody))
	open()

	rooms := []string{"images", "directories", "snapshots", "scratch", "attributes"}
	for _, path := range append(rooms, ".") {
		requireOwner(somebody, in(path))
	}

	// A node that was killed half way; what an administrator has chosen; what is in use.
	require.NoError(t, os.Chown(in("images"), 0, 0))
	require.NoError(t, os.Chown(in("snapshots"), other, other))
	require.NoError(t, os.Chown(in("directories"), 0, 0))
	require.NoError(t, os.Mkdir(in("directories", "volume"), 0o755))
	open()

	requireOwner(somebody, in("images"))
	requireOwner(other, in("snapshots"))
	requireOwner(0, in("directories"))
	requireOwner(0, in("directories", "volume"))
}
