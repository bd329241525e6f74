package pools_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// fillerBytes are written and deleted again: much more than what a filesystem
// of a volume needs for itself.
const fillerBytes = 32 * harness.MiB

// TestDeletedFilesReturnTheirSpace trims the mounted filesystem, as fstrim
// does, or deletes from one that is mounted with discard: the image in the pool
// gets smaller.
func TestDeletedFilesReturnTheirSpace(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, fsType)}, CapacityRange: harness.RequiredBytes(300 * harness.MiB),
			})
			harness.BringUp(t, d, claim)

			filler := filepath.Join(claim.TargetPath, "filler")
			before, full := fill(t, d, claim, filler)
			require.NoError(t, os.Remove(filler))
			// XFS gives up the blocks of a deleted file in its own time.
			require.Eventually(t, func() bool {
				trim(t, claim.TargetPath)

				return harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID)) < full-fillerBytes/2
			}, time.Minute, 10*time.Millisecond, "%d before it was filled, %d after", before, full)
			harness.TakeDown(t, d, claim)
		})
	}

	t.Run("mounted with discard", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t)
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "xfs", "discard")}, CapacityRange: harness.RequiredBytes(300 * harness.MiB),
		})
		harness.BringUp(t, d, claim)

		filler := filepath.Join(claim.TargetPath, "filler")
		_, full := fill(t, d, claim, filler)
		require.NoError(t, os.Remove(filler))

		// The filesystem discards in its own time, the last when it is unmounted.
		harness.TakeDown(t, d, claim)
		require.Less(t, harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID)), full-fillerBytes/2, "want: the deleted files are freed")
	})

	t.Run("raw block", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t)
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(64 * harness.MiB),
		})
		harness.BringUp(t, d, claim)

		_, full := fill(t, d, claim, claim.TargetPath)
		require.GreaterOrEqual(t, full, int64(fillerBytes), "want: the written data is allocated")

		device, err := os.OpenFile(claim.TargetPath, os.O_RDWR, 0)
		require.NoError(t, err)

		// struct { start, length } as BLKDISCARD wants it, in bytes.
		request := [2]uint64{0, fillerBytes}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&request)))
		require.Zero(t, errno, "want: the discard succeeds")
		require.NoError(t, device.Close())
		require.Zero(t, harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID)), "want: the discarded data is freed")
		harness.TakeDown(t, d, claim)
	})
}

// fill writes that many bytes to where the volume is used, and returns what
// its image takes of the pool before and after.
func fill(t *testing.T, d *harness.Driver, claim *csiclient.Publication, path string) (before, full int64) {
	t.Helper()

	before = harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID))
	data := make([]byte, fillerBytes)
	_, _ = rand.Read(data)

	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = file.Write(data)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())

	full = harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID))
	require.GreaterOrEqual(t, full, before+fillerBytes/2, "want: the written data is allocated")

	return before, full
}

// trim is FITRIM over the whole filesystem (include/uapi/linux/fs.h).
func trim(t *testing.T, path string) {
	t.Helper()
	require.Zero(t, tryTrim(t, path), "want: the trim succeeds")
}

func tryTrim(t *testing.T, path string) unix.Errno {
	t.Helper()

	directory, err := os.Open(path)
	require.NoError(t, err)

	defer directory.Close()

	// What was deleted is free for the filesystem once that is on the disk.
	require.NoError(t, unix.Syncfs(int(directory.Fd())))

	// struct fstrim_range { start, len, minlen }, in bytes.
	request := [3]uint64{0, ^uint64(0), 0}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, directory.Fd(), fitrim, uintptr(unsafe.Pointer(&request)))

	return errno
}

// fitrim is _IOWR('X', 121, struct fstrim_range).
const fitrim = 0xc0185879
