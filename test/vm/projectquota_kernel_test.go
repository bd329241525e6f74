package vm_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/test/await"
)

// mountQuotaDisk is mountDisk with project quotas.
func mountQuotaDisk(t *testing.T, fsType string) string {
	t.Helper()

	mkfs := []string{"-q", "-f"}
	if fsType == "ext4" {
		mkfs = []string{"-q", "-F", "-O", "project,quota"}
	}

	return mountDiskWith(t, fsType, mkfs, "prjquota")
}

// withoutPrivilege runs the call on a thread without CAP_SYS_RESOURCE, as in a container: with it,
// ext4 exempts a process from limits.
func withoutPrivilege(t *testing.T, call func() error) error {
	t.Helper()

	failed := make(chan error, 1)

	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.

		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

		var sets [2]unix.CapUserData

		err := unix.Capget(&header, &sets[0])
		if err == nil {
			sets[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&header, &sets[0])
		}

		if err == nil {
			err = call()
		}

		failed <- err
	}()

	return await.Receive(t, failed, "the call without the privilege to return")
}

// fillUp writes to a new file until the filesystem refuses, and returns how much it took.
func fillUp(t *testing.T, path string) (written int64) {
	t.Helper()

	err := withoutPrivilege(t, func() error {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
		if err != nil {
			return err
		}

		block := make([]byte, blockBytes)

		for err == nil {
			var n int

			n, err = file.Write(block)
			written += int64(n)
		}

		return errors.Join(err, file.Sync(), file.Close())
	})
	requireLimit(t, err)

	return written
}

// requireLimit accepts what the filesystems answer beyond a limit: ext4 EDQUOT, xfs ENOSPC.
func requireLimit(t *testing.T, err error) {
	t.Helper()

	require.Error(t, err, "want: the limit refuses the operation")
	require.True(t, errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC), "%v", err)
}

// makeFiles makes empty files until the filesystem refuses, and returns how many.
func makeFiles(t *testing.T, directory string) (made int64) {
	t.Helper()

	err := withoutPrivilege(t, func() error {
		for {
			file, err := os.CreateTemp(directory, "empty-")
			if err != nil {
				return err
			}

			_ = file.Close()
			made++
		}
	})
	requireLimit(t, err)

	return made
}

// TestKernelLimitsProjects is the ground on which the driver's use of project quotas stands.
func TestKernelLimitsProjects(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			const project, other, limit = 1 << 20, 1<<32 - 2, 8 * mib

			disk := mountQuotaDisk(t, fsType)
			root := openDirectory(t, disk)

			on, err := projectquota.Enforced(root)
			require.NoError(t, err)
			require.True(t, on, "prjquota")

			found, err := projectquota.Get(root, project)
			require.NoError(t, err)
			require.True(t, found.IsZero(), "a project that was never used: %+v", found)

			one := makeProject(t, disk, "one", project)
			found, err = projectquota.Get(root, project)
			require.NoError(t, err)
			require.EqualValues(t, 1, found.Used.Inodes, "a directory counts as soon as it belongs to the project")

			require.NoError(t, projectquota.SetLimits(root, project, projectquota.Amount{Bytes: limit, Inodes: 40}))

			// Below the directory everything inherits the project.
			sub := filepath.Join(disk, "one", "a", "b")
			require.NoError(t, os.MkdirAll(sub, directoryMode))

			require.EqualValues(t, 37, makeFiles(t, sub), "with the three directories")
			removeAll(t, sub, "empty-*")

			written := fillUp(t, filepath.Join(sub, "data"))
			require.InDelta(t, limit, written, 256<<10, "want: the project is full at its limit")

			found, err = projectquota.Get(root, project)
			require.NoError(t, err)
			require.Equal(t, projectquota.Amount{Bytes: limit, Inodes: 40}, found.Limit)
			require.EqualValues(t, 4, found.Used.Inodes, "three directories and a file")
			require.LessOrEqual(t, found.Used.Bytes, limit, "want: no more than the limit is used")
			require.Equal(t, limit, totalBytes(t, filepath.Join(disk, "one")), "statfs shows the limit")

			requireRenames(t, disk, one, makeProject(t, disk, "two", other))
			requireListed(t, root, project, other)

			require.NoError(t, projectquota.SetLimits(root, project, projectquota.Amount{}))
			found, err = projectquota.Get(root, project)
			require.NoError(t, err)
			require.Zero(t, found.Limit, "want: the limit is removed")
		})
	}
}

// requireRenames checks which renames the kernel allows between projects.
func requireRenames(t *testing.T, disk string, one, two *os.File) {
	t.Helper()

	scratch := filepath.Join(disk, "scratch")
	require.NoError(t, os.Mkdir(scratch, directoryMode))
	// Into a directory without a project, also if both ends of the exchange have one.
	require.NoError(t, os.Rename(one.Name(), filepath.Join(scratch, "one")))
	require.NoError(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(scratch, "one"), unix.AT_FDCWD, two.Name(), unix.RENAME_EXCHANGE))
	require.NoError(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(scratch, "one"), unix.AT_FDCWD, two.Name(), unix.RENAME_EXCHANGE))
	require.NoError(t, os.Rename(filepath.Join(scratch, "one"), one.Name()))

	file := filepath.Join(one.Name(), "a", "b", "data")
	require.ErrorIs(t, os.Rename(file, filepath.Join(two.Name(), "data")), unix.EXDEV)
	require.ErrorIs(t, os.Link(file, filepath.Join(two.Name(), "data")), unix.EXDEV)
	// The directory of the copier's links has no project.
	require.NoError(t, os.Link(file, filepath.Join(scratch, "link")))
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Rename(filepath.Join(scratch, "link"), file))
}

func requireListed(t *testing.T, root *os.File, want ...uint32) {
	t.Helper()

	var ids []uint32

	for found, err := range projectquota.All(root, 1) {
		require.NoError(t, err)
		require.Positive(t, found.Used.Inodes, "%+v", found)
		ids = append(ids, found.ID)
	}

	require.Equal(t, want, ids)
}

func makeProject(t *testing.T, disk, name string, id uint32) *os.File {
	t.Helper()

	path := filepath.Join(disk, name)
	require.NoError(t, os.Mkdir(path, directoryMode))

	directory := openDirectory(t, path)
	before, err := projectquota.MembershipOf(directory)
	require.NoError(t, err)
	require.Zero(t, before, "want: the new directory is in no project")

	require.NoError(t, projectquota.Join(directory, id))
	after, err := projectquota.MembershipOf(directory)
	require.NoError(t, err)
	require.Equal(t, projectquota.Membership{Project: id, Inherited: true}, after)

	return directory
}

func openDirectory(t *testing.T, path string) *os.File {
	t.Helper()

	directory, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = directory.Close() })

	return directory
}
