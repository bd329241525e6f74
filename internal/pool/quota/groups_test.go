package quota_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/test/child"
)

// writeMebi makes a file of that size, durably.
func writeMebi(t *testing.T, path string) {
	t.Helper()

	file, err := os.Create(path)
	require.NoError(t, err)

	_, err = file.Write(make([]byte, mebi))
	require.NoError(t, errors.Join(err, file.Sync(), file.Close()))
}

// idOf returns the id of the subvolume of a path.
func idOf(t *testing.T, path string) uint64 {
	t.Helper()

	opened, err := os.Open(path)
	require.NoError(t, err)

	defer opened.Close()

	id, err := btrfs.ID(opened)
	require.NoError(t, err)

	return id
}

// groupsOf returns the quota groups of a filesystem. Once it is settled, the kernel has none of
// subvolumes that it could remove completely.
func groupsOf(t *testing.T, directory string, settled bool) []btrfs.Group {
	t.Helper()

	if settled {
		// The first command makes the kernel remove subvolumes now, not within 30 seconds.
		for _, each := range []string{"filesystem", "subvolume"} {
			output, err := child.Command(t, "btrfs", each, "sync", directory).CombinedOutput()
			require.NoError(t, err, "%s", output)
		}
	}

	pool, err := os.Open(directory)
	require.NoError(t, err)

	defer pool.Close()

	require.NoError(t, btrfs.Commit(pool))

	groups, err := btrfs.Groups(pool)
	require.NoError(t, err)

	return groups
}

// requireParents requires the own groups of subvolumes to be members of the group alone that limits a
// volume.
func requireParents(t *testing.T, directory, volume string, inside ...string) {
	t.Helper()

	pool, err := os.Open(directory)
	require.NoError(t, err)

	defer pool.Close()

	want := []btrfs.Group{btrfs.GroupOf(1, idOf(t, filepath.Join(directory, volume)))}

	for _, name := range append(inside, volume) {
		parents, err := btrfs.Parents(pool, btrfs.GroupOf(0, idOf(t, filepath.Join(directory, name))))
		require.NoError(t, err)
		require.Equal(t, want, parents, "want: %s counts for %s", name, volume)
	}
}

// requireMembers requires the group that limits a volume to have so many members.
func requireMembers(t *testing.T, directory, volume string, count int) {
	t.Helper()

	pool, err := os.Open(directory)
	require.NoError(t, err)

	defer pool.Close()

	members, err := btrfs.Members(pool, btrfs.GroupOf(1, idOf(t, filepath.Join(directory, volume))))
	require.NoError(t, err)
	require.Len(t, members, count, "want: no other subvolume counts for %s", volume)
}

// quotasOf returns the directory of sysfs that has the quota groups of a filesystem.
func quotasOf(t *testing.T, directory string) string {
	t.Helper()

	pool, err := os.Open(directory)
	require.NoError(t, err)

	defer pool.Close()

	id, err := btrfs.UUID(pool)
	require.NoError(t, err)

	return "/sys/fs/btrfs/" + id + "/qgroups"
}
