package mount_test

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

func TestUsageIsTheMountsOwn(t *testing.T) {
	t.Parallel()
	needRoot(t)

	const total, written = 1 << 20, 64 << 10

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	before, err := target.Usage()
	require.NoError(t, err)
	require.EqualValues(t, total, before.Bytes.Total)
	require.Equal(t, before.Bytes.Total, before.Bytes.Used+before.Bytes.Available)
	require.Equal(t, before.Inodes.Total, before.Inodes.Used+before.Inodes.Available)

	writeFile(t, target.Path()+"/file", string(make([]byte, written)))

	after, err := target.Usage()
	require.NoError(t, err)
	require.EqualValues(t, written, after.Bytes.Used-before.Bytes.Used)
	require.EqualValues(t, 1, after.Inodes.Used-before.Inodes.Used)
}

func TestUsageCountsWhatIsReservedAsNotAvailable(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	attach(t, loopDevice(t, 32<<20, "mkfs.ext4", "-q", "-b", "4096", "-m", "10"), "ext4", target)

	usage, err := target.Usage()
	require.NoError(t, err)
	require.Positive(t, usage.Bytes.Available)
	require.Less(t, usage.Bytes.Used+usage.Bytes.Available, usage.Bytes.Total-2<<20)
}

func TestUsageOfNothing(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)

	_, err := find(t, dirs, dir+"/nothing").Usage()
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, os.Symlink("/", dir+"/symlink"))

	_, err = find(t, dirs, dir+"/symlink").Usage()
	require.ErrorIs(t, err, mount.ErrSymlink)
}
