package vm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const (
	immutable = 0x10 // FS_IMMUTABLE_FL
	// From linux/fs.h (Linux 6.10; before, of ext4 and XFS): FS_IOC_SHUTDOWN, FS_SHUTDOWN_FLAGS_NOLOGFLUSH.
	shutDown, shutDownWithoutLog = 0x8004587d, 2
)

// TestDirectoryProjects has directories that a driver does not make in one go.
func TestDirectoryProjects(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			disk := mountQuotaDisk(t, fsType)
			p, err := pool.Open("default", disk, pool.Options{})
			require.NoError(t, err)

			defer p.Close()

			id := newID(t)
			path := p.ObjectPath(pool.Object{ID: id, Backing: volume.BackingDirectory})

			// Killed before the directory belonged to a project.
			require.NoError(t, os.Mkdir(path, directoryMode))
			requireLimited(t, p, id, 0)
			require.NoError(t, p.Directories.Create(id, 16*mib, false))
			requireLimited(t, p, id, 16*mib)

			// Another directory has the first project of the volume.
			first := projectOf(t, path)
			moved := filepath.Join(disk, "moved")
			require.NoError(t, os.Rename(path, moved))
			require.NoError(t, p.Directories.Create(id, 32*mib, false))
			requireLimited(t, p, id, 32*mib)
			require.NotEqual(t, first, projectOf(t, path), "want: the new directory has a project of its own")

			// Deeper than a removal opens directories at once, and unwritable.
			deep := filepath.Join(path, strings.Repeat("d/", 40))
			require.NoError(t, os.MkdirAll(deep, directoryMode))
			setFlags(t, deep, immutable)
			require.NoError(t, p.Remove(t.Context(), pool.Object{ID: id, Backing: volume.BackingDirectory}))

			// A directory with files that has no project never gets one.
			other := newID(t)
			require.NoError(t, os.MkdirAll(filepath.Join(p.ObjectPath(pool.Object{ID: other, Backing: volume.BackingDirectory}), "file"), directoryMode))
			require.NoError(t, p.Directories.Create(other, 16*mib, false))
			requireLimited(t, p, other, 0)

			require.NoError(t, projectquota.SetLimits(openDirectory(t, disk), first, projectquota.Amount{}))
			require.NoError(t, os.Remove(moved))
			requireNoProjects(t, disk)
		})
	}
}

// projectOf leaves the directory closed: an open one counts for its project after it is removed.
func projectOf(t *testing.T, path string) uint32 {
	t.Helper()

	directory := openDirectory(t, path)
	defer directory.Close()

	found, err := projectquota.MembershipOf(directory)
	require.NoError(t, err)

	return found.Project
}

func setFlags(t *testing.T, path string, flags int) {
	t.Helper()

	directory := openDirectory(t, path)
	defer directory.Close()

	require.NoError(t, unix.IoctlSetPointerInt(int(directory.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

// TestDirectoriesMadeAtOnce makes directories through four pools, which share no lock: each has a
// project of its own.
func TestDirectoriesMadeAtOnce(t *testing.T) {
	const each = 50

	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			disk := mountQuotaDisk(t, fsType)

			var (
				making errgroup.Group
				ids    [4][each]string
			)

			for i := range ids {
				p, err := pool.Open("default", disk, pool.Options{})
				require.NoError(t, err)

				t.Cleanup(func() { _ = p.Close() })

				for k := range each {
					ids[i][k] = newID(t)
				}

				making.Go(func() error {
					var failures []error
					for _, id := range ids[i] {
						failures = append(failures, p.Directories.Create(id, 16*mib, false))
					}

					return errors.Join(failures...)
				})
			}

			require.NoError(t, making.Wait())

			found := 0

			for project, err := range projectquota.All(openDirectory(t, disk), firstProject) {
				require.NoError(t, err)
				require.Equal(t, projectquota.Quota{
					Limit: projectquota.Amount{Bytes: 16 * mib, Inodes: 1024}, Used: projectquota.Amount{Bytes: project.Used.Bytes, Inodes: 1},
				}, project.Quota)

				found++
			}

			require.Equal(t, len(ids)*each, found, "want: each directory has a project")
		})
	}
}

// requireLimited compares the limit of a directory; 0 is none.
func requireLimited(t *testing.T, p *pool.Pool, id string, size int64) {
	t.Helper()

	found, limited, err := p.Directories.Quota(id)
	require.NoError(t, err)
	require.Equal(t, size > 0, limited, "want: the directory has a limit if it has a size")
	require.Equal(t, size, found.LimitBytes, "want: the limit is the size of the directory")
}

func newID(t *testing.T) string {
	t.Helper()

	id := volume.NewID()

	return id
}

// TestDirectoryLimitsAfterPowerFailure shuts the filesystem down without writing its log: limits that
// were synced are there after the log is replayed.
func TestDirectoryLimitsAfterPowerFailure(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachineWithErrors(t)

			disk := mountQuotaDisk(t, fsType)
			p, err := pool.Open("default", disk, pool.Options{})
			require.NoError(t, err)

			made, expanded := newID(t), newID(t)

			for _, id := range []string{expanded, made} {
				require.NoError(t, p.Directories.Create(id, 16*mib, false))
				require.NoError(t, p.Directories.Sync(id))
			}

			require.NoError(t, p.Directories.Limit(expanded, 32*mib))
			require.NoError(t, p.Directories.Sync(expanded))

			root := openDirectory(t, disk)
			require.NoError(t, unix.IoctlSetPointerInt(int(root.Fd()), shutDown, shutDownWithoutLog))
			require.NoError(t, p.Close())
			require.NoError(t, root.Close())

			run(t, "umount", disk)
			run(t, "mount", "-t", fsType, "-o", "prjquota", setting(t, "TOUCHSTONE_VM_DISK"), disk)

			p, err = pool.Open("default", disk, pool.Options{})
			require.NoError(t, err)

			for id, size := range map[string]int64{made: 16 * mib, expanded: 32 * mib} {
				requireLimited(t, p, id, size)
			}

			require.NoError(t, p.Close())
		})
	}
}
