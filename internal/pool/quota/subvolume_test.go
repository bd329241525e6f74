package quota_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// abandonedLimit is that of a group that could not be removed with its volume.
const abandonedLimit = 1<<62 + 1

// TestStaleGroupsAreThoseOfRemovedVolumes: whatever limit the groups of administrators have, they stay.
func TestStaleGroupsAreThoseOfRemovedVolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	prepare(t, directory)

	s, err := openSite(directory)
	require.NoError(t, err)

	pool, err := os.Open(directory)
	require.NoError(t, err)

	const gone = 1 << 40 // no subvolume has that number

	existing := idOf(t, filepath.Join(directory, "unlimited"))
	before := groupsOf(t, directory, true)

	made := map[btrfs.Group]struct {
		limit int64
		stays bool
	}{
		btrfs.GroupOf(2, gone):     {abandonedLimit, true},
		btrfs.GroupOf(1, 100):      {abandonedLimit, true},
		btrfs.GroupOf(1, existing): {abandonedLimit, true},
		btrfs.GroupOf(1, gone):     {abandonedLimit, false},
		btrfs.GroupOf(1, gone+1):   {abandonedLimit - 1, true},
		btrfs.GroupOf(1, gone+2):   {0, true},
		btrfs.GroupOf(1, 256+gone): {abandonedLimit, false},
	}
	for group, each := range made {
		require.NoError(t, btrfs.CreateGroup(pool, group), "%v", group)

		if each.limit > 0 {
			require.NoError(t, btrfs.Limit(pool, group, each.limit))
		}
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.RemoveStale(ended), context.Canceled)
	require.Contains(t, groupsOf(t, directory, false), btrfs.GroupOf(1, gone), "want: what has ended removes nothing")
	require.NoError(t, s.RemoveStale(t.Context()))

	after := groupsOf(t, directory, false)
	for group, each := range made {
		if each.stays {
			require.Contains(t, after, group, "want: the group stays")
		} else {
			require.NotContains(t, after, group, "want: the group of a removed volume is removed")
		}
	}

	require.Subset(t, after, before, "want: the groups of the volumes stay")
	require.NoError(t, errors.Join(pool.Close(), s.close()))
}

// TestInspectionChangesNothing: a pool that is only inspected has its subvolumes confined by no
// one, and its quotas are not turned on.
func TestInspectionChangesNothing(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)

	off, err := openPool(directory, true)
	require.NoError(t, err)
	require.Equal(t, quota.Support{
		Kind: quota.Subvolume, Reason: "quotas are off; the driver turns them on when it opens the pool", Snapshots: true,
	}, off.Support())
	require.NoError(t, off.Close())

	prepare(t, directory)

	inspecting, err := openPool(directory, true)
	require.NoError(t, err)
	require.Equal(t, quota.Support{Kind: quota.Subvolume, Limited: true, Snapshots: true}, inspecting.Support())

	pool, err := os.Open(directory)
	require.NoError(t, err)

	volume, err := os.Open(filepath.Join(directory, "volume"))
	require.NoError(t, err)

	own := btrfs.GroupOf(0, idOf(t, filepath.Join(directory, "volume", "another's")))
	chosen, err := btrfs.Parents(pool, own)
	require.NoError(t, err)

	evaded, err := inspecting.Confine(volume)
	require.NoError(t, err)
	require.False(t, evaded, "want: nothing is searched")

	names, err := inspecting.Grown()
	require.NoError(t, err)
	require.Empty(t, names, "want: nothing is searched")

	after, err := btrfs.Parents(pool, own)
	require.NoError(t, err)
	require.Equal(t, chosen, after, "want: the groups are as their user has chosen them")

	swept, err := inspecting.Sweep(t.Context(), volume)
	require.NoError(t, err)
	require.False(t, swept, "want: Confine finds all")
	require.NoError(t, errors.Join(volume.Close(), pool.Close(), inspecting.Close()))
}

// TestGrownVolumesAreFoundOnce: those around each subvolume that was made since the last call.
func TestGrownVolumesAreFoundOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	prepare(t, directory)

	s, err := openSite(directory)
	require.NoError(t, err)

	grown := func(want ...string) {
		t.Helper()

		names, err := s.Grown()
		require.NoError(t, err)
		require.Equal(t, want, names)
	}

	grown("another's", "other", "volume")
	grown()
	require.NoError(t, testpool.MakeSubvolume(filepath.Join(directory, "unlimited"), "new", 0))
	require.NoError(t, testpool.MakeSubvolume(filepath.Join(directory, "other"), "new", 0))
	grown("other", "unlimited")
	grown()
	require.NoError(t, s.Make(s.root, "made", mode))
	grown()

	// One that is being removed may be one that is being made: what was made since is found again until it is gone.
	require.NoError(t, s.Make(s.root, "ending", mode))
	require.NoError(t, s.in(".", func(parent *os.File) error { return btrfs.Destroy(parent, "ending") }))
	require.NoError(t, testpool.MakeSubvolume(filepath.Join(directory, "unlimited"), "later", 0))
	grown("unlimited")
	grown("unlimited")
	groupsOf(t, directory, true)
	grown("unlimited")
	grown()
	require.NoError(t, s.close())
}

// TestForeignSubvolumes are those inside of another volume, which has evaded its limit then.
func TestForeignSubvolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	prepare(t, directory)

	s, err := openSite(directory)
	require.NoError(t, err)
	require.NoError(t, s.Make(s.root, "ending", mode))

	id := func(name string) uint64 { return idOf(t, filepath.Join(directory, name)) }
	ending := id("ending")
	require.NoError(t, s.in(".", func(parent *os.File) error { return btrfs.Destroy(parent, "ending") }))

	for _, each := range []struct {
		id, volume      uint64
		foreign, exists bool
	}{
		{id("volume/another's"), id("volume"), false, true},
		{id("volume/another's/innermost"), id("volume"), false, true},
		{id("volume/another's/innermost"), id("other"), true, true},
		{id("volume"), id("other"), true, true},
		{id("other/own"), id("volume"), true, true},
		{ending, id("other"), false, true},
		{1 << 40, id("other"), false, false},
	} {
		foreign, exists, err := quota.IsForeign(s.Directories, each.id, each.volume)
		require.NoError(t, err)
		require.Equal(t, []bool{each.foreign, each.exists}, []bool{foreign, exists}, "want: whether %d is foreign to %d, and exists", each.id, each.volume)
	}

	require.NoError(t, s.confine("other"))
	require.True(t, s.evaded["other"], "want: the volume around a foreign one has evaded its limit")

	s.evaded["other"] = false
	_, _, err = quota.IsForeign(s.Directories, id("other"), id("volume"))
	require.NoError(t, err)
	require.NoError(t, s.confine("other"))
	require.False(t, s.evaded["other"], "want: it is reported once, and not because it is elsewhere itself")
	require.NoError(t, s.close())
}

// TestDirectoriesOfARemovedVolume: what is inside goes with it, and with the groups that it was in.
func TestDirectoriesOfARemovedVolume(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := testpool.Btrfs(t, 256*mebi)
	prepare(t, directory)

	s, err := openSite(directory)
	require.NoError(t, err)

	parent, err := s.root.Open(".")
	require.NoError(t, err)

	for name, want := range map[string]bool{"volume": true, "plain": false, "missing": false} {
		removed, err := s.Remove(t.Context(), parent, name)
		require.NoError(t, err)
		require.Equal(t, want, removed, "want: %s is removed, or left to the caller", name)
	}

	require.NoDirExists(t, filepath.Join(directory, "volume"))
	require.DirExists(t, filepath.Join(directory, "plain"))
	require.NoError(t, s.confine("other"))
	requireParents(t, directory, "other", "other/own")

	_, err = s.root.Stat("volume")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, errors.Join(parent.Close(), s.close()))
}
