package pools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// thickVolume is a request for a thick volume.
func thickVolume(capability *csi.VolumeCapability, bytes int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: harness.RequiredBytes(bytes),
		Parameters: map[string]string{"provisioning": "thick"},
	}
}

// TestAThickVolumeIsUsedInANearlyFullPool attaches, stages, publishes and attaches again
// a thick volume in an XFS pool that has less free space than the volume's size.
func TestAThickVolumeIsUsedInANearlyFullPool(t *testing.T) {
	namespace.NeedRoot(t)

	const size = 200 * harness.MiB

	for name, capability := range map[string]*csi.VolumeCapability{
		"mounted": csiclient.MountCapability(harness.Writer, "ext4"), "raw block": csiclient.BlockCapability(harness.Writer),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := testpool.Reflink(t, 600*harness.MiB)
			d := harness.Start(t, func(c *driver.Config) { c.Pools = map[string]string{"default": directory} })
			claim := harness.NewVolume(t, d, thickVolume(capability, size))

			var stat unix.Statfs_t

			require.NoError(t, unix.Statfs(directory, &stat))

			filler, err := os.Create(directory + "/filler")
			require.NoError(t, err)
			require.NoError(t, unix.Fallocate(int(filler.Fd()), 0, 0, int64(stat.Bavail)*stat.Bsize-size/2))
			require.NoError(t, filler.Close())

			for range 2 {
				harness.BringUp(t, d, claim)
				require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID)), int64(size), "want: a thick volume has all of its blocks")
				harness.TakeDown(t, d, claim)
			}
		})
	}
}

// TestThickVolumeKeepsItsSpace discards all that a filesystem does not use, and
// all of a raw block device. The next volume, which has the same device number
// unless another test takes it, is thin and can be trimmed.
func TestThickVolumeKeepsItsSpace(t *testing.T) {
	namespace.NeedRoot(t)

	const size = 300 * harness.MiB

	for name, capability := range map[string]*csi.VolumeCapability{
		"ext4": csiclient.MountCapability(harness.Writer, "ext4"), "xfs": csiclient.MountCapability(harness.Writer, "xfs"),
		"btrfs":     csiclient.MountCapability(harness.Writer, "btrfs"),
		"discard":   csiclient.MountCapability(harness.Writer, "ext4", "discard"),
		"raw block": csiclient.BlockCapability(harness.Writer),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			thick := harness.NewVolume(t, d, thickVolume(capability, size))
			harness.BringUp(t, d, thick)

			reserved := harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID))
			require.GreaterOrEqual(t, reserved, int64(size), "want: a thick volume has all of its blocks")

			if capability.GetBlock() != nil {
				require.Equal(t, unix.EOPNOTSUPP, discardAll(t, thick.TargetPath, size), "want: a thick volume refuses to discard")
			} else {
				filler := filepath.Join(thick.TargetPath, "filler")
				harness.WriteFile(t, filler, strings.Repeat("filler", harness.MiB))
				require.NoError(t, os.Remove(filler))
				require.Equal(t, unix.EOPNOTSUPP, tryTrim(t, thick.TargetPath), "want: a thick volume refuses to trim")
			}

			require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID)), reserved, "want: a thick volume keeps its blocks in use")

			harness.TakeDown(t, d, thick)
			require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID)), reserved, "want: a thick volume keeps its blocks when it is unstaged")

			thin := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "thin", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}})
			harness.BringUp(t, d, thin)
			require.Zero(t, discardAll(t, thin.TargetPath, 64*harness.MiB), "want: a thin volume discards")
		})
	}
}

// discardAll is BLKDISCARD.
func discardAll(t *testing.T, path string, size uint64) unix.Errno {
	t.Helper()

	device, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer device.Close()

	// struct { start, length } in bytes.
	request := [2]uint64{0, size}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&request)))

	return errno
}
