package pool_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const limitBytes = 16 * mebi

// newLimited makes a volume of limitBytes in a pool on a btrfs.
func newLimited(tb testing.TB, p *pool.Pool) (object pool.Object, path string) {
	tb.Helper()

	object = directoryOf(newID(tb))
	require.NoError(tb, p.Directories.Create(object.ID, limitBytes, false))

	return object, placeOf(p, object)
}

// write writes and syncs a file of so many bytes.
func write(path string, length int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()

	if _, err := file.Write(randomBytes(length)); err != nil {
		return err
	}

	return file.Sync()
}

// groupsOf returns the quota groups of the pool's filesystem once the kernel has removed deleted
// subvolumes.
func groupsOf(tb testing.TB, p *pool.Pool) []btrfs.Group {
	tb.Helper()

	// The first command makes the kernel remove subvolumes now, not within 30 seconds.
	for _, each := range []string{"filesystem", "subvolume"} {
		output, err := child.Command(tb, "btrfs", each, "sync", p.Path()).CombinedOutput()
		require.NoError(tb, err, "%s", output)
	}

	directory, err := os.Open(p.Path())
	require.NoError(tb, err)

	defer directory.Close()

	require.NoError(tb, btrfs.Commit(directory))

	groups, err := btrfs.Groups(directory)
	require.NoError(tb, err)
	slices.Sort(groups)

	return groups
}

func TestBtrfsPoolsLimitDirectories(t *testing.T) {
	p := newPool(t, cow, 512*mebi)
	require.Equal(t, quota.Support{Kind: quota.Subvolume, Limited: true, Snapshots: true}, p.Directories.Support())

	object, path := newLimited(t, p)
	require.NoError(t, p.Directories.Sync(object.ID))

	t.Run("write beyond the limit", func(t *testing.T) {
		require.NoError(t, write(filepath.Join(path, "half"), limitBytes/2))
		require.ErrorIs(t, write(filepath.Join(path, "more"), limitBytes), unix.EDQUOT)
		require.NoError(t, os.Remove(filepath.Join(path, "more")))
	})

	t.Run("usage", func(t *testing.T) {
		output, err := child.Command(t, "sync", "-f", path).CombinedOutput()
		require.NoError(t, err, "%s", output)

		usage, limited, err := p.Directories.Quota(object.ID)
		require.NoError(t, err)
		require.True(t, limited, "want: the directory has a limit")
		require.EqualValues(t, limitBytes, usage.LimitBytes, "want: the directory has its limit")
		require.GreaterOrEqual(t, usage.Bytes, int64(limitBytes/2), "want: the written bytes are counted")
		require.Less(t, usage.Bytes, int64(limitBytes), "want: the removed bytes are not counted")
	})

	t.Run("subvolume inside", func(t *testing.T) {
		output, err := child.Command(t, "btrfs", "subvolume", "create", filepath.Join(path, "inside")).CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.ErrorIs(t, write(filepath.Join(path, "inside", "file"), limitBytes), unix.EDQUOT)
		require.NoError(t, os.Remove(filepath.Join(path, "inside", "file")))
	})

	t.Run("restart", func(t *testing.T) {
		opened := openPool(t, p.Path())

		usage, limited, err := opened.Directories.Quota(object.ID)
		require.NoError(t, err)
		require.True(t, limited, "want: the directory has a limit")
		require.EqualValues(t, limitBytes, usage.LimitBytes, "want: the limit survives a restart")
	})

	t.Run("expansion", func(t *testing.T) {
		require.NoError(t, p.Directories.Limit(object.ID, 2*limitBytes))
		require.NoError(t, p.Directories.Sync(object.ID))
		require.NoError(t, write(filepath.Join(path, "more"), limitBytes))
	})

	t.Run("a limit is never lowered", func(t *testing.T) {
		require.NoError(t, p.Directories.Create(object.ID, limitBytes, false))

		usage, _, err := p.Directories.Quota(object.ID)
		require.NoError(t, err)
		require.EqualValues(t, 2*limitBytes, usage.LimitBytes, "want: the limit has grown")
	})
}

// TestBtrfsPoolsUseFullQuotas has quotas that an administrator has turned on: they count what a
// directory refers to, shared or not, and the driver turns on no other ones.
func TestBtrfsPoolsUseFullQuotas(t *testing.T) {
	namespace.NeedRoot(t)

	p := openPool(t, testpool.On(t, 512*mebi, cow, "-q", "-R", "quota"))
	require.Equal(t, quota.Support{Kind: quota.Subvolume, Limited: true, Snapshots: true}, p.Directories.Support())

	before := groupsOf(t, p)
	object, path := newLimited(t, p)
	require.NoError(t, p.Directories.Sync(object.ID))
	require.NoError(t, write(filepath.Join(path, "half"), limitBytes/2))
	require.ErrorIs(t, write(filepath.Join(path, "more"), limitBytes), unix.EDQUOT)
	require.NoError(t, os.Remove(filepath.Join(path, "more")))

	clone := directoryOf(newID(t))
	copied(t, p, p, object, clone, pool.CopyOptions{})
	require.NoError(t, p.Directories.Limit(clone.ID, limitBytes))
	require.NoError(t, p.Directories.Sync(clone.ID))

	for _, each := range []pool.Object{object, clone} {
		usage, limited, err := p.Directories.Quota(each.ID)
		require.NoError(t, err)
		require.True(t, limited, "want: the directory has a limit")
		require.EqualValues(t, limitBytes, usage.LimitBytes, "want: the directory has its limit")
		require.GreaterOrEqual(t, usage.Bytes, int64(limitBytes/2), "want: the written bytes are counted")
		require.ErrorIs(t, write(filepath.Join(placeOf(p, each), "more"), limitBytes), unix.EDQUOT)
	}

	require.NoError(t, p.Directories.Limit(object.ID, 4*limitBytes))
	require.NoError(t, write(filepath.Join(path, "more"), limitBytes))

	for _, each := range []pool.Object{object, clone} {
		require.NoError(t, p.Remove(t.Context(), each))
	}

	requireGroups(t, p, before)
}

// requireGroups requires that after the removal of subvolumes, and of what the kernel keeps of one whose space it
// has counted elsewhere, these groups are left.
func requireGroups(t *testing.T, p *pool.Pool, want []btrfs.Group) {
	t.Helper()

	groupsOf(t, p)
	require.NoError(t, p.RemoveStaleScratch(t.Context()))
	require.Equal(t, want, groupsOf(t, p), "want: no quota group of a removed subvolume is left")
}

// TestARepairedPoolKeepsItsQuotas: they are not turned on.
func TestARepairedPoolKeepsItsQuotas(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.On(t, 512*mebi, cow, "-q")

	for _, test := range []struct {
		options pool.Options
		limited bool
	}{{pool.Options{KeepQuotas: true}, false}, {pool.Options{}, true}, {pool.Options{KeepQuotas: true}, true}} {
		p, err := pool.Open("a", directory, test.options)
		require.NoError(t, err)
		require.Equal(t, test.limited, p.Directories.Support().Limited, "want: sizes are limited once quotas are on")
		require.NoError(t, p.Close())
	}
}

func TestRemovalOfSubvolumesLeavesNoQuotaGroup(t *testing.T) {
	p := newPool(t, cow, 512*mebi)
	before := groupsOf(t, p)

	for name, remove := range map[string]func(pool.Object) error{
		"Remove":  func(object pool.Object) error { return p.Remove(t.Context(), object) },
		"Discard": func(object pool.Object) error { return p.Discard(t.Context(), object) },
	} {
		t.Run(name, func(t *testing.T) {
			object, path := newLimited(t, p)
			inside := filepath.Join(path, "directory", "inside")
			require.NoError(t, os.Mkdir(filepath.Dir(inside), 0o755))

			for _, each := range []string{inside, filepath.Join(inside, "deeper"), filepath.Join(path, "beside")} {
				output, err := child.Command(t, "btrfs", "subvolume", "create", each).CombinedOutput()
				require.NoError(t, err, "%s", output)
				require.NoError(t, write(filepath.Join(each, "file"), mebi))
			}

			require.NoError(t, remove(object))
			require.NoDirExists(t, path)
			require.Equal(t, before, groupsOf(t, p))
		})
	}

	t.Run("empty orphan", func(t *testing.T) {
		object, path := newLimited(t, p)

		removed, err := p.RemoveEmptyOrphan(t.Context(), pool.Object{ID: object.ID, Backing: object.Backing})
		require.NoError(t, err)
		require.True(t, removed, "want: the empty directory without a record is removed")
		require.NoDirExists(t, path)
		require.Equal(t, before, groupsOf(t, p))
	})

	t.Run("snapshot that outlives its source", func(t *testing.T) {
		object, path := newLimited(t, p)
		require.NoError(t, write(filepath.Join(path, "file"), mebi))

		snapshot := snapshotOf(t, object)
		copied(t, p, p, object, snapshot, pool.CopyOptions{})
		require.NoError(t, p.Remove(t.Context(), object))
		require.FileExists(t, filepath.Join(placeOf(p, snapshot), "file"))

		require.NoError(t, p.Remove(t.Context(), snapshot))
		groupsOf(t, p)
		require.NoError(t, p.RemoveStaleScratch(t.Context()))
		require.Equal(t, before, groupsOf(t, p))
	})
}

func TestSnapshotsOfSubvolumes(t *testing.T) {
	p := newPool(t, cow, 512*mebi)
	source, path := newLimited(t, p)
	furnish(t, path)

	snapshot := snapshotOf(t, source)
	before := describe(t, path)

	making, err := p.NewCopy(p, source, snapshot, pool.CopyOptions{})
	require.NoError(t, err)
	require.True(t, making.PointInTime(), "want: a copy of a subvolume is point-in-time")
	require.NoError(t, making.CopyData(t.Context()))

	allocated, err := making.Commit(t.Context())
	require.NoError(t, err)
	require.Positive(t, allocated, "want: Commit returns what the kernel counts of the source")
	require.Equal(t, before, describe(t, placeOf(p, snapshot)))
	require.ErrorIs(t, os.WriteFile(filepath.Join(placeOf(p, snapshot), "new"), nil, 0o600), unix.EROFS)

	t.Run("restore", func(t *testing.T) {
		restored := directoryOf(newID(t))
		copied(t, p, p, snapshot, restored, pool.CopyOptions{SizeBytes: 2 * limitBytes})
		require.Equal(t, before, describe(t, placeOf(p, restored)))

		usage, limited, err := p.Directories.Quota(restored.ID)
		require.NoError(t, err)
		require.True(t, limited, "want: the directory has a limit")
		require.EqualValues(t, 2*limitBytes, usage.LimitBytes, "want: the copy has the larger limit")
		require.ErrorIs(t, write(filepath.Join(placeOf(p, restored), "more"), 2*limitBytes), unix.EDQUOT)
	})

	t.Run("interrupted", func(t *testing.T) {
		groups := groupsOf(t, p)
		clone := directoryOf(newID(t))

		making, err := p.NewCopy(p, source, clone, pool.CopyOptions{SizeBytes: limitBytes})
		require.NoError(t, err)
		require.NoError(t, making.CopyData(t.Context()))
		require.NoError(t, making.Abort())
		nothingHalfMade(t, p, clone)
		require.Equal(t, groups, groupsOf(t, p))
	})

	t.Run("replaces what is in place", func(t *testing.T) {
		groups := groupsOf(t, p)
		copied(t, p, p, source, snapshot, pool.CopyOptions{})
		require.Equal(t, before, describe(t, placeOf(p, snapshot)))
		// The kernel may still have the group of what was replaced.
		require.NoError(t, p.Directories.RemoveStaleQuotas(t.Context()))
		require.Len(t, groupsOf(t, p), len(groups), "want: the snapshot leaves no further quota group")
	})

	t.Run("plain directory of an earlier release", func(t *testing.T) {
		old := directoryOf(newID(t))
		require.NoError(t, os.Mkdir(placeOf(p, old), 0o755))
		require.NoError(t, write(filepath.Join(placeOf(p, old), "file"), 2*limitBytes))
		require.NoError(t, p.Directories.Create(old.ID, limitBytes, false))

		_, limited, err := p.Directories.Quota(old.ID)
		require.NoError(t, err)
		require.False(t, limited, "want: an old directory has no limit")

		making, err := p.NewCopy(p, old, snapshotOf(t, old), pool.CopyOptions{})
		require.NoError(t, err)
		require.False(t, making.PointInTime(), "want: a copy of an old directory is not point-in-time")
		require.NoError(t, making.Abort())
		require.NoError(t, p.Remove(t.Context(), old))
		require.NoDirExists(t, placeOf(p, old))
	})
}

// TestSnapshotsAreTakenWhileTheVolumeIsWritten writes numbered records to two files in turn, each
// durable before the next, and requires the files of each snapshot to differ by one record at most.
func TestSnapshotsAreTakenWhileTheVolumeIsWritten(t *testing.T) {
	const (
		snapshots = 10
		length    = 8
	)

	p := newPool(t, cow, 512*mebi)
	source, path := newLimited(t, p)

	var (
		written  atomic.Int64
		ctx, end = context.WithCancel(t.Context())
		ended    = make(chan error, 1)
	)

	go func() { ended <- writeInTurn(ctx, path, &written) }()

	for range snapshots {
		reached := written.Load()

		snapshot := snapshotOf(t, source)
		copied(t, p, p, source, snapshot, pool.CopyOptions{})

		var counts [2]int64

		for i := range counts {
			info, err := os.Stat(filepath.Join(placeOf(p, snapshot), strconv.Itoa(i)))
			if !errors.Is(err, os.ErrNotExist) {
				require.NoError(t, err)
				require.Zero(t, info.Size()%length, "want: the snapshot has whole writes")
				counts[i] = info.Size() / length
			}
		}

		require.Contains(t, []int64{0, 1}, counts[0]-counts[1])
		require.GreaterOrEqual(t, counts[0]+counts[1], reached, "a record that was durable before is missing")
	}

	end()
	require.NoError(t, await.Receive(t, ended, "the writer to end"))
	require.Positive(t, written.Load(), "want: the volume is written meanwhile")
}

// writeInTurn appends records to two files until the context ends.
func writeInTurn(ctx context.Context, directory string, written *atomic.Int64) error {
	var files [2]*os.File

	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()

	for i := range files {
		file, err := os.OpenFile(filepath.Join(directory, strconv.Itoa(i)), os.O_CREATE|os.O_WRONLY|unix.O_DSYNC|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}

		files[i] = file
	}

	for number := int64(0); ctx.Err() == nil; number++ {
		if _, err := files[number%2].Write(binary.LittleEndian.AppendUint64(nil, uint64(number))); err != nil {
			return err
		}

		written.Add(1)
	}

	return nil
}
