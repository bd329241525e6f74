package crash_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
)

// diskBytes is more than the load allocates.
const diskBytes = 4 << 30

// makeDisk makes a file at path with a filesystem.
func makeDisk(t *testing.T, path, fsType string) {
	t.Helper()

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, diskBytes))

	options := map[string][]string{
		// Otherwise a kernel thread initializes the tables during the load.
		filesystem.Ext4:  {"-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"},
		filesystem.XFS:   {"-q", "-s", "size=4096"},
		filesystem.Btrfs: {"-q"},
	}
	run(t, "mkfs."+fsType, append(options[fsType], path)...)
}

// run executes a tool, which must succeed.
func run(t *testing.T, name string, arguments ...string) {
	t.Helper()

	output, err := child.Command(t, name, arguments...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, output)
}

// copyDisk copies a file with its holes.
func copyDisk(t *testing.T, from, to string) {
	t.Helper()
	run(t, "cp", "--sparse=auto", from, to)
}

// mountDisk mounts the filesystem in a file with its default options, and reports whether the
// device has direct I/O. The caller unmounts it; a failed test does so, too.
func mountDisk(t *testing.T, path, fsType, directory string) (direct bool) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), file, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	require.NoError(t, err)

	defer device.Close()

	require.NoError(t, unix.Mount(device.Path, directory, fsType, 0, ""), "mount the %s that the power failure has left", fsType)
	t.Cleanup(func() {
		if t.Failed() {
			_ = unix.Unmount(directory, unix.MNT_DETACH) // it may be unmounted
		}
	})

	return device.DirectIO
}

// temporaryDirectory is t.TempDir without symlinks.
func temporaryDirectory(t *testing.T) string {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	return directory
}

// coverBoot has the machine's id of its boot be the site's, which a power failure changes.
func (s *site) coverBoot(t *testing.T) {
	t.Helper()

	const machine = "/proc/sys/kernel/random/boot_id"

	s.setBoot(t, "first")
	require.NoError(t, unix.Mount(s.boot(), machine, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(machine, unix.MNT_DETACH)) })
}

func (s *site) boot() string { return filepath.Join(s.root, "boot") }

func (s *site) setBoot(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.boot(), []byte(id), 0o600))
}
