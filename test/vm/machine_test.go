package vm_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/kernellog"
)

// Sizes as the tests write them, in bytes.
const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

const (
	directoryMode = 0o755
	fileMode      = 0o600
)

// inMachine skips the test unless it runs in the guest that hack/test-vm.sh
// starts: the tests format a disk that they are handed.
func inMachine(t *testing.T) {
	t.Helper()

	inMachineWithErrors(t)
	watchKernel(t)
}

// inMachineWithErrors is inMachine for a test that causes errors which the kernel logs.
func inMachineWithErrors(t *testing.T) {
	t.Helper()

	if os.Getenv("TOUCHSTONE_VM") != "1" {
		t.Skip("runs inside make test-vm")
	}
}

// setting is what the guest's init hands to the tests.
func setting(t *testing.T, name string) string {
	t.Helper()

	value := os.Getenv(name)
	require.NotEmpty(t, value, "the guest's init did not set %s", name)

	return value
}

// mountDisk formats the guest's disk and mounts it, so that no test meets
// what another left.
func mountDisk(t *testing.T, fsType string) string {
	t.Helper()

	force := "-f"
	if fsType == "ext4" {
		force = "-F"
	}

	return mountDiskWith(t, fsType, []string{"-q", force}, "defaults")
}

// mountDiskWith is mountDisk with options of mkfs and of mount.
func mountDiskWith(t *testing.T, fsType string, mkfs []string, options string) string {
	t.Helper()

	disk, dir := setting(t, "TOUCHSTONE_VM_DISK"), filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.Mkdir(dir, directoryMode))

	run(t, "mkfs."+fsType, append(mkfs, disk)...)
	run(t, "mount", "-t", fsType, "-o", options, disk, dir)
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		// A test that has failed anyway may still hold what it was busy with.
		if t.Failed() && errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(dir, unix.MNT_DETACH)
		}

		require.NoError(t, err, "still mounted: the pool's disk")
	})

	return dir
}

// run executes a tool of the guest; it must succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()

	// Not the test's context, which has ended when cleanups run.
	output, err := child.CommandWithin(t, waitLimit, name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), output)

	return strings.TrimSpace(string(output))
}

// complaint is what no kernel should say while the tests run. Stalls and soft
// lockups are not in it: they say how busy the host is.
var complaint = regexp.MustCompile(
	`EXT4-fs error|JBD2: .*rror|XFS.*(Corruption|[Ee]rror|[Ss]hut)|BTRFS (error|critical)|I/O error|Oops|BUG: unable|BUG: kernel NULL`)

// watchKernel fails the test when the kernel complains during it: a filesystem
// may be damaged long before the log is read.
func watchKernel(t *testing.T) {
	t.Helper()

	log, err := kernellog.Open()
	require.NoError(t, err)

	t.Cleanup(func() {
		defer log.Close()

		records, err := log.Read()
		require.NoError(t, err)

		for _, each := range records {
			require.NotRegexp(t, complaint, each.Text, "the kernel complained")
		}
	})
}

// identity stays the same as long as nothing is mounted again.
type identity struct {
	mount, inode uint64
	major, minor uint32
}

func identityOf(t *testing.T, path string) identity {
	t.Helper()

	return statx(t, unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

func identityOfFile(t *testing.T, file *os.File) identity {
	t.Helper()

	return statx(t, int(file.Fd()), "", unix.AT_EMPTY_PATH)
}

func statx(t *testing.T, fd int, path string, flags int) identity {
	t.Helper()

	const wanted = unix.STATX_INO | unix.STATX_MNT_ID

	var stat unix.Statx_t
	require.NoError(t, unix.Statx(fd, path, flags, wanted, &stat), path)
	require.EqualValues(t, wanted, stat.Mask&wanted, "this kernel's statx is too old")

	return identity{mount: stat.Mnt_id, inode: stat.Ino, major: stat.Dev_major, minor: stat.Dev_minor}
}

// totalBytes is the filesystem's size as an application sees it.
func totalBytes(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &stat), path)

	return int64(stat.Blocks) * stat.Bsize
}
