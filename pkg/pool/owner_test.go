package pool_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// TestFilledImageKeepsItsOwner is for a controller that is not root, beside a
// node that has to be.
func TestFilledImageKeepsItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}

	t.Parallel()

	const size, nobody = 1 << 20, 65534

	directory := t.TempDir()
	pools, err := pool.OpenSet(map[string]string{volume.DefaultPool: directory})
	require.NoError(t, err)

	defer func() { require.NoError(t, pools.Close()) }()

	place, ok := pools.Get(volume.DefaultPool)
	require.True(t, ok)

	id, err := volume.NewID()
	require.NoError(t, err)
	require.NoError(t, place.EnsureImage(id, size, false))

	image := filepath.Join(directory, "images", id+pool.ImageSuffix)
	require.NoError(t, os.Chown(image, nobody, nobody))
	require.NoError(t, place.FillImage(t.Context(), id, false, func(_ context.Context, path string) error {
		return os.WriteFile(path, []byte("filled"), 0o600)
	}))

	content, err := os.ReadFile(image)
	require.NoError(t, err)
	require.Contains(t, string(content), "filled")

	info, err := os.Stat(image)
	require.NoError(t, err)

	owner, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.EqualValues(t, nobody, owner.Uid)
	require.EqualValues(t, nobody, owner.Gid)
}

// TestRoomsBelongToThePoolsOwner is for the same controller, whose node has
// started first; also after a node that was killed half way.
func TestRoomsBelongToThePoolsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}

	t.Parallel()

	const somebody, other = 65534, 65533

	directory := t.TempDir()
	require.NoError(t, os.Chown(directory, somebody, somebody))
	require.NoError(t, os.Mkdir(filepath.Join(directory, "images"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(directory, "snapshots"), 0o700))
	require.NoError(t, os.Chown(filepath.Join(directory, "snapshots"), other, other))

	opened, err := pool.Open("shared", directory)
	require.NoError(t, err)
	require.NoError(t, opened.Close())

	for room, want := range map[string]uint32{"images": somebody, "scratch": somebody, "directories": somebody, "snapshots": other} {
		info, err := os.Stat(filepath.Join(directory, room))
		require.NoError(t, err)

		owner, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.Equal(t, want, owner.Uid, room)
		require.Equal(t, want, owner.Gid, room)
	}
}
