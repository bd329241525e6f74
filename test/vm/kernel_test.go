package vm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestKernelGrowsMountedExt4 is the ground on which the other tests stand: when
// it fails, this machine cannot do it, and the driver is not to blame.
func TestKernelGrowsMountedExt4(t *testing.T) {
	inMachine(t)

	image, mountpoint := filepath.Join(mountDisk(t, "ext4"), "image"), t.TempDir()
	require.NoError(t, os.WriteFile(image, nil, fileMode))
	require.NoError(t, os.Truncate(image, 64*mib))
	run(t, "mkfs.ext4", "-q", image)

	loop := run(t, "losetup", "-f")
	run(t, "losetup", loop, image)
	t.Cleanup(func() { run(t, "losetup", "-d", loop) })
	run(t, "mount", "-t", "ext4", loop, mountpoint)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mountpoint, 0)) })

	require.Less(t, totalBytes(t, mountpoint), 64*mib, "want: the filesystem has its size before the growth")
	require.NoError(t, os.Truncate(image, gib))

	device, err := os.Open(loop)
	require.NoError(t, err)

	defer device.Close()

	require.NoError(t, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0))
	run(t, "resize2fs", loop)
	require.Greater(t, totalBytes(t, mountpoint), gib*8/10, "want: the filesystem has grown")
}
