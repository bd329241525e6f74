package crash_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	volumes "github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/writelog"
)

// TestRenamedImageIsWholeAfterAPowerFailure has the power fail right after a copy is complete. The
// filesystem has committed the image in scratch before the rename: btrfs then keeps both names.
func TestRenamedImageIsWholeAfterAPowerFailure(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs} {
		t.Run(fsType, func(t *testing.T) {
			work := temporaryDirectory(t)
			served, disk, directory := filepath.Join(work, "served"), filepath.Join(work, "disk"), filepath.Join(work, "mounted")
			require.NoError(t, os.Mkdir(served, 0o700))
			require.NoError(t, os.Mkdir(directory, 0o700))
			makeDisk(t, disk, fsType)
			copyDisk(t, disk, filepath.Join(served, "disk"))

			server := faults.ServeRecorded(t, served, filepath.Join(work, "log"))
			require.True(t, mountDisk(t, filepath.Join(server.Path, "disk"), fsType, directory), "direct I/O")

			content := bytes.Repeat([]byte("content "), mib/8)
			target := copyCommittedInScratch(t, filepath.Join(directory, "pool"), content)
			point := server.Recorded(t)

			require.NoError(t, unix.Unmount(directory, 0))
			server.End(t)
			replayTo(t, filepath.Join(work, "log"), point, disk)
			mountDisk(t, disk, fsType, directory)

			scratch, err := os.ReadDir(filepath.Join(directory, "pool", "scratch"))
			require.NoError(t, err)
			t.Logf("%d names in scratch", len(scratch))

			opened, err := pool.Open("default", filepath.Join(directory, "pool"), pool.Options{})
			require.NoError(t, err)
			require.NoError(t, opened.RemoveStaleScratch(t.Context()))

			found, err := os.ReadFile(opened.ObjectPath(target))
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, found), "the content of the copy, which has %d bytes", len(found))
			require.Empty(t, entries(t, filepath.Join(directory, "pool", "scratch")), "want: no scratch file is left")
			require.NoError(t, opened.Close())
			require.NoError(t, unix.Unmount(directory, 0))
		})
	}
}

// copyCommittedInScratch makes an image and a copy of it in a new pool. All of the filesystem is
// durable before the copy gets its name.
func copyCommittedInScratch(t *testing.T, path string, content []byte) pool.Object {
	t.Helper()

	made, err := pool.Open("default", path, pool.Options{})
	require.NoError(t, err)

	source := pool.Object{ID: newID(t), Backing: volumes.BackingImage}
	target := pool.Object{ID: newID(t), Backing: volumes.BackingImage, Snapshot: true}

	require.NoError(t, made.Images.Create(source.ID, int64(len(content)), false))

	image, err := made.Images.Open(source.ID, os.O_RDWR)
	require.NoError(t, err)
	_, err = image.WriteAt(content, 0)
	require.NoError(t, err)
	require.NoError(t, image.Sync())

	copied, err := made.NewCopy(made, source, target, pool.CopyOptions{})
	require.NoError(t, err)
	require.NoError(t, copied.CopyData(t.Context()))
	require.NoError(t, unix.Syncfs(int(image.Fd())))
	_, err = copied.Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, image.Close())
	require.NoError(t, made.Close())

	return target
}

func newID(t *testing.T) string {
	t.Helper()

	id := volumes.NewID()

	return id
}

// replayTo makes the disk what a power failure at the point leaves, without the later writes.
func replayTo(t *testing.T, log string, point int, disk string) {
	t.Helper()

	recorded, err := writelog.Open(log)
	require.NoError(t, err)

	file, err := os.OpenFile(disk, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, recorded.Apply(file, 0, recorded.Durable(point)))
	require.NoError(t, file.Close())
	require.NoError(t, recorded.Close())
}
