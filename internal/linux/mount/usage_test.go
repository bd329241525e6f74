package mount_test

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

func TestUsageIsOfTheMount(t *testing.T) {
	t.Parallel()
	needRoot(t)

	const total, written = 1 << 20, 64 << 10

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	before, err := target.Usage()
	require.NoError(t, err)
	require.EqualValues(t, total, before.Bytes.Total, "want: the total is the one of the filesystem")
	require.Equal(t, before.Bytes.Total, before.Bytes.Used+before.Bytes.Available, "want: used and available bytes are the total")
	require.Equal(t, before.Inodes.Total, before.Inodes.Used+before.Inodes.Available, "want: used and available inodes are the total")

	writeFile(t, target.Path()+"/file", string(make([]byte, written)))

	after, err := target.Usage()
	require.NoError(t, err)
	require.EqualValues(t, written, after.Bytes.Used-before.Bytes.Used, "want: the written bytes are used")
	require.EqualValues(t, 1, after.Inodes.Used-before.Inodes.Used, "want: the written file uses an inode")
}

func TestUsageExcludesReservedBlocks(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	attach(t, loopDevice(t, 32<<20, "mkfs.ext4", "-q", "-b", "4096", "-m", "10"), "ext4", target)

	usage, err := target.Usage()
	require.NoError(t, err)
	require.Positive(t, usage.Bytes.Available, "want: bytes are available")
	require.Less(t, usage.Bytes.Used+usage.Bytes.Available, usage.Bytes.Total-2<<20, "want: the reserved bytes are not available")
}

func TestUsageOfAMissingPathFails(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)

	_, err := find(t, dirs, dir+"/nothing").Usage()
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, os.Symlink("/", dir+"/symlink"))

	_, err = find(t, dirs, dir+"/symlink").Usage()
	require.ErrorIs(t, err, mount.ErrSymlink)
}
