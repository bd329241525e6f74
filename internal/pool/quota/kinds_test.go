package quota_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/tenant"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// plainDirectory returns a directory on a filesystem without any quotas.
func plainDirectory(t *testing.T) string {
	t.Helper()

	directory, err := os.MkdirTemp("/dev/shm", "touchstone-quota-") //nolint:usetesting // on another filesystem
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(directory)) })

	return directory
}

// TestPlainDirectoriesHaveNoLimit: nothing is counted for them, and they are left to a walk.
func TestPlainDirectoriesHaveNoLimit(t *testing.T) {
	t.Parallel()

	directory := plainDirectory(t)
	s, err := openSite(directory)
	require.NoError(t, err)
	require.Equal(t, quota.Plain, s.Support().Kind)
	require.NotEmpty(t, s.Support().Reason, "want: the reason why sizes are not limited")
	require.NoError(t, s.Make(s.root, "made", mode))
	require.ErrorIs(t, s.Make(s.root, "made", mode), fs.ErrExist)

	require.NoError(t, s.in("made", func(made *os.File) error {
		usage, limited, err := s.Usage(made)
		allocated, known, unknown := s.Allocated(made)
		evaded, failed := s.Confine(made)
		swept, unswept := s.Sweep(t.Context(), made)

		require.ErrorIs(t, s.Snapshot(made, s.root, "copy"), errors.ErrUnsupported)

		return errors.Join(s.Limit(made, limitBytes), s.Seal(made), s.Sync(made), s.RemoveStale(t.Context()), err, unknown, failed, unswept,
			syscallfault.Differs("what is known",
				[]any{quota.Usage{}, int64(0), false, false, false, false, false}, []any{usage, allocated, limited, known, evaded, swept, s.CanSnapshot(made)}))
	}))

	grown, err := s.Grown()
	require.NoError(t, err)
	require.Empty(t, grown, "want: nothing evades limits")

	require.NoError(t, s.in(".", func(parent *os.File) error {
		removed, err := s.Remove(t.Context(), parent, "made")

		return errors.Join(err, syscallfault.Differs("removed", false, removed))
	}))
	require.DirExists(t, filepath.Join(directory, "made"))
	require.NoError(t, s.close())
}

// TestAPlainDirectoryHasItsModeOrIsNotMade has each call for one fail once.
func TestAPlainDirectoryHasItsModeOrIsNotMade(t *testing.T) {
	t.Parallel()

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Operation: "make", Within: plainDirectory(t), Lossy: []string{"*"}, Reported: []string{""}, Unreported: regexp.MustCompile("^readlinkat "), Causes: true,
		Failed: func(t *testing.T, directory string) {
			t.Helper()
			require.NoDirExists(t, filepath.Join(directory, "made"), "want: no directory is left with another mode")
		},
		Verify: verifyMade,
	})
}

// TestEachCallOfAnOpeningFailsOnce: a filesystem that cannot be probed is not one without quotas.
func TestEachCallOfAnOpeningFailsOnce(t *testing.T) {
	t.Parallel()

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Operation: "open without quotas", Within: plainDirectory(t), Reported: []string{"openat", "fstatfs"}, Causes: true, Verify: func(*testing.T, string) {},
	})
}

func verifyMade(t *testing.T, directory string) {
	t.Helper()

	info, err := os.Stat(filepath.Join(directory, "made"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(mode), info.Mode().Perm(), "want: the umask does not change the mode")
}

// TestFullQuotasLimitOwnGroups: an administrator has turned them on, and may turn them off.
func TestFullQuotasLimitOwnGroups(t *testing.T) {
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	btrfsQuota := func(how string) {
		output, err := child.Command(t, "btrfs", "quota", how, directory).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}

	btrfsQuota("enable")

	s, err := openSite(directory)
	require.NoError(t, err)
	require.Equal(t, quota.Support{Kind: quota.Subvolume, Limited: true, Snapshots: true}, s.Support())

	limits := func(name string) (bytes int64) {
		require.NoError(t, s.in(name, func(made *os.File) error {
			usage, limited, err := s.Usage(made)
			_, known, unknown := s.Allocated(made)
			evaded, failed := s.Confine(made)
			bytes = usage.LimitBytes

			return errors.Join(err, unknown, failed,
				syscallfault.Differs("limited, allocated, evaded", []bool{bytes > 0, false, false}, []bool{limited, known, evaded}))
		}))

		return bytes
	}

	for _, name := range []string{"removed", "kept"} {
		require.NoError(t, s.Make(s.root, name, mode))
		require.Zero(t, limits(name), "want: a new directory has no limit")

		for _, bytes := range []int64{2 * limitBytes, limitBytes} {
			require.NoError(t, s.in(name, func(made *os.File) error { return s.Limit(made, bytes) }))
			require.EqualValues(t, 2*limitBytes, limits(name), "want: a limit is never lowered")
		}
	}

	remove := func(name string) {
		require.NoError(t, s.in(".", func(parent *os.File) error {
			removed, err := s.Remove(t.Context(), parent, name)

			return errors.Join(err, syscallfault.Differs("removed", true, removed))
		}))
	}

	id := idOf(t, filepath.Join(directory, "removed"))
	require.NotContains(t, groupsOf(t, directory, false), btrfs.GroupOf(1, id), "want: the limit is that of the own group")
	remove("removed")

	btrfsQuota("disable")
	remove("kept")
	require.NoError(t, s.RemoveStale(t.Context()), "want: quotas that are off keep nothing")
	require.NoError(t, s.close())
	require.ErrorIs(t, s.Close(), os.ErrClosed, "want: the pool is closed once")

	off, err := openPool(directory, true)
	require.NoError(t, err)
	require.False(t, off.Support().Limited, "want: nothing is limited without quotas")

	pool, err := os.Open(directory)
	require.NoError(t, err)

	own, err := btrfs.UUID(pool)
	require.NoError(t, errors.Join(err, pool.Close()))
	require.True(t, quota.AnyOnFilesystem(own, filepath.Join(directory, "missing"), plainDirectory(t), directory), "want: one of them is on the filesystem")
	require.False(t, quota.AnyOnFilesystem(own, filepath.Join(directory, "missing"), plainDirectory(t)), "want: none of them is on the filesystem")
	require.False(t, quota.AnyOnFilesystem("another", directory), "want: the directory is on another filesystem")
	require.NoError(t, off.Close())
}

// TestSubvolumesNeedPrivilege: without it they are neither limited nor removed.
func TestSubvolumesNeedPrivilege(t *testing.T) {
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	tenant.Own(t, directory)
	require.NoError(t, tenant.Call(t, directory, func(path string) error {
		found, err := openPool(path, true)
		if err != nil {
			return err
		}

		return errors.Join(found.Close(), syscallfault.Differs("support",
			quota.Support{Kind: quota.Plain, Reason: "subvolumes of btrfs can be limited and removed with CAP_SYS_ADMIN only; give it to the driver"}, found.Support()))
	}))
}
