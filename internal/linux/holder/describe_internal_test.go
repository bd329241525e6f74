package holder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestIsRunning: another process with the same number is another process.
func TestIsRunning(t *testing.T) {
	t.Parallel()

	this := Process{PID: os.Getpid(), Command: command(os.Getpid()), MountNamespace: mountNamespace(os.Getpid())}
	require.NotZero(t, this.MountNamespace, "want: this process has a mount namespace")
	require.True(t, this.IsRunning(), "want: this process is running")

	for name, other := range map[string]Process{
		"no process":        {},
		"another command":   {PID: this.PID, Command: "another", MountNamespace: this.MountNamespace},
		"another namespace": {PID: this.PID, Command: this.Command, MountNamespace: this.MountNamespace + 1},
		"none of the PID":   {PID: 1 << 30, Command: this.Command, MountNamespace: this.MountNamespace},
		"without a PID":     {Command: "?"},
		"no such device":    {Device: "/dev/nosuchdevice"},
		"a loop device":     {Device: "/dev/loop1048575"},
	} {
		require.False(t, other.IsRunning(), "want: %s is not running", name)
	}
}

// TestUpToThreeHoldersAreNamed, and the others counted.
func TestUpToThreeHoldersAreNamed(t *testing.T) {
	t.Parallel()

	open := Process{PID: 7, Command: "fio", MountNamespace: 9}
	mounted := Process{PID: 8, Command: "sh", MountNamespace: 10, Mount: "/mnt"}
	device := Process{Device: "/dev/loop7"}

	for want, found := range map[string][]Process{
		"process 7 (fio) has it open":                                          {open},
		"process 8 (sh) in mount namespace 10 has it mounted at /mnt":          {mounted},
		"block device /dev/loop7 is made of it":                                {device},
		"process 7 (fio) has it open, block device /dev/loop7 is made of it, ": {open, device, open},
	} {
		require.Contains(t, describe(found, nil), want)
		require.NotContains(t, describe(found, nil), "more")
	}

	require.Contains(t, describe([]Process{open, open, open, device}, nil), ", 1 more")
	require.NotContains(t, describe([]Process{open, open, open, device}, nil), "loop7")
	require.Equal(t, "its users are unknown: "+unix.EACCES.Error(), describe([]Process{open}, unix.EACCES))
	require.Equal(t, "process 7 (fio) in mount namespace 9", open.Name())
	require.Equal(t, "block device /dev/loop7", device.Name())

	_, err := OfMount("/nosuchpath")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestAFileIsInTheDeviceOfItsFilesystem, and a node is its own.
func TestAFileIsInTheDeviceOfItsFilesystem(t *testing.T) {
	t.Parallel()

	node := &unix.Statx_t{Mode: unix.S_IFBLK | 0o600, Rdev_major: 7, Rdev_minor: 3, Dev_major: 1, Dev_minor: 2}
	character := &unix.Statx_t{Mode: unix.S_IFCHR, Rdev_major: 7, Rdev_minor: 3}

	for _, test := range []struct {
		major, minor uint32
		is, in       bool
	}{
		{7, 3, true, false},
		{7, 4, false, false},
		{8, 3, false, false},
		{1, 2, false, true},
		{1, 3, false, false},
		{2, 2, false, false},
	} {
		require.Equal(t, test.is, isDevice(node, test.major, test.minor), "the node is %d:%d", test.major, test.minor)
		require.False(t, isDevice(character, test.major, test.minor), "want: a character device is no block device")
		require.Equal(t, test.in, isIn(node, test.major, test.minor), "the node is in %d:%d", test.major, test.minor)
	}
}

// TestBackingFiles: a file with content is in its filesystem; of another one the loop device is asked.
func TestBackingFiles(t *testing.T) {
	t.Parallel()

	content, empty := filepath.Join(t.TempDir(), "content"), filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(content, []byte("1"), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))

	var stat unix.Stat_t
	require.NoError(t, unix.Stat(content, &stat))

	major, minor := unix.Major(stat.Dev), unix.Minor(stat.Dev)

	for path, want := range map[string]bool{
		content: true, content + deletedSuffix: true, empty: false, filepath.Dir(content): false, "/": false, "/nosuchpath": false,
	} {
		require.Equal(t, want, isBacking("/dev/nosuchdevice", path, major, minor), path)
		require.False(t, isBacking("/dev/nosuchdevice", path, major, minor+1), "want: %s is not in another device", path)
	}
}
