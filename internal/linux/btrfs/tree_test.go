package btrfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
)

// idOf returns the id of the subvolume that a directory is in.
func idOf(t *testing.T, path string) uint64 {
	t.Helper()

	id, err := btrfs.ID(open(t, path))
	require.NoError(t, err)

	return id
}

// TestSubvolumesAreFound finds subvolumes by their ids, and removes them with all that is inside.
func TestSubvolumesAreFound(t *testing.T) {
	t.Parallel()

	top := mounted(t)
	parent := open(t, top)
	at := func(names ...string) string { return filepath.Join(append([]string{top}, names...)...) }

	id, err := btrfs.UUID(parent)
	require.NoError(t, err)
	require.NoError(t, uuid.Validate(id))
	require.DirExists(t, "/sys/fs/btrfs/"+id)

	require.NoError(t, btrfs.Create(parent, "a"))
	require.NoError(t, btrfs.Create(open(t, at("a")), "b"))
	require.NoError(t, btrfs.Create(open(t, at("a", "b")), "c"))
	require.NoError(t, btrfs.Create(open(t, at("a")), "d"))
	require.NoError(t, btrfs.Create(parent, "e"))
	require.NoError(t, os.Mkdir(at("a", "plain"), 0o700))

	a, b, c, d, e := idOf(t, at("a")), idOf(t, at("a", "b")), idOf(t, at("a", "b", "c")), idOf(t, at("a", "d")), idOf(t, at("e"))
	require.Equal(t, a, idOf(t, at("a", "plain")), "want: a directory has the id of its subvolume")

	inside, err := btrfs.Inside(parent, a)
	require.NoError(t, err)
	require.Equal(t, []uint64{b, d}, inside, "the subvolumes directly inside")

	inside, err = btrfs.AllInside(parent, a)
	require.NoError(t, err)
	require.Equal(t, []uint64{b, d, c}, inside, "want: each subvolume is before those inside of it")

	inside, err = btrfs.AllInside(parent, e)
	require.NoError(t, err)
	require.Empty(t, inside, "want: nothing is inside of an empty subvolume")

	place, found, err := btrfs.PlaceOf(parent, c)
	require.NoError(t, err)
	require.True(t, found, "want: the subvolume is found")
	require.Equal(t, btrfs.Place{Outer: b, Name: "c"}, place)

	_, found, err = btrfs.PlaceOf(parent, e+1)
	require.NoError(t, err)
	require.False(t, found, "want: an id without a subvolume is not found")

	all, err := btrfs.From(parent, b)
	require.NoError(t, err)
	require.Equal(t, []uint64{b, c, d, e}, all, "the subvolumes from one on")

	for id, want := range map[uint64]bool{a: true, e: true, e + 1: false} {
		exists, err := btrfs.Exists(parent, id)
		require.NoError(t, err)
		require.Equal(t, want, exists, "subvolume %d exists", id)
	}

	require.NoError(t, os.WriteFile(at("a", "b", "file"), []byte("content"), 0o600))
	require.NoError(t, btrfs.SetReadOnly(open(t, at("a", "b")), true))
	require.ErrorIs(t, os.WriteFile(at("a", "b", "file"), nil, 0o600), unix.EROFS)
	require.NoError(t, btrfs.SetReadOnly(open(t, at("a", "b")), false))
	require.NoError(t, os.WriteFile(at("a", "b", "file"), []byte("other"), 0o600))
	require.NoError(t, btrfs.SetReadOnly(open(t, at("a", "b")), true))

	require.NoError(t, btrfs.DestroyAll(parent, "a", a), "want: what is inside of a read-only subvolume is removed, too")
	require.NoDirExists(t, at("a"))
	require.NoError(t, btrfs.Commit(parent))
	require.DirExists(t, at("e"))
	require.NoError(t, btrfs.DestroyAll(parent, "e", e))
	require.ErrorIs(t, btrfs.DestroyAll(parent, "e", e), fs.ErrNotExist)
}

// TestManySubvolumesAreFound: they are more than one answer of the kernel has.
func TestManySubvolumesAreFound(t *testing.T) {
	t.Parallel()

	const many = 150

	top := mounted(t)
	parent := open(t, top)

	for i := range many {
		require.NoError(t, btrfs.Create(parent, strings.Repeat("n", 100)+string(rune('0'+i/10))+string(rune('0'+i%10))))
	}

	inside, err := btrfs.Inside(parent, idOf(t, top))
	require.NoError(t, err)
	require.Len(t, inside, many, "want: each subvolume is found once")
	require.True(t, slices.IsSorted(inside), "want: subvolumes are in the order of their ids")

	all, err := btrfs.From(parent, inside[0])
	require.NoError(t, err)
	require.Equal(t, inside, all)
}

// TestQuotaGroupsLimitSubvolumes, and are members of each other.
func TestQuotaGroupsLimitSubvolumes(t *testing.T) {
	t.Parallel()

	top := mounted(t)
	parent := open(t, top)

	id, err := btrfs.UUID(parent)
	require.NoError(t, err)

	quotas := btrfs.QuotasOf(id)
	mode, err := quotas.Mode()
	require.NoError(t, err)
	require.Equal(t, btrfs.QuotaOff, mode)

	_, err = quotas.Read(btrfs.GroupOf(0, 5))
	require.ErrorIs(t, err, fs.ErrNotExist)

	if err := btrfs.Enable(parent); errors.Is(err, unix.EINVAL) {
		t.Skip("simple quotas need Linux 6.7")
	} else {
		require.NoError(t, err)
	}

	mode, err = quotas.Mode()
	require.NoError(t, err)
	require.Equal(t, btrfs.SimpleQuota, mode)

	require.NoError(t, btrfs.Create(parent, "a"))

	require.NoError(t, os.WriteFile(filepath.Join(top, "a", "file"), make([]byte, 1<<16), 0o600))
	require.NoError(t, unix.Syncfs(int(parent.Fd())))

	group := btrfs.GroupOf(0, idOf(t, filepath.Join(top, "a")))
	pool := btrfs.GroupOf(1, 7)
	require.Equal(t, "1/7", pool.String())
	require.Equal(t, []uint64{1, 7}, []uint64{uint64(pool.Level()), pool.Number()})

	for range 2 {
		require.NoError(t, btrfs.CreateGroup(parent, pool), "want: a group that exists is no error")
		require.NoError(t, btrfs.Assign(parent, group, pool), "want: a member that is one already is no error")
	}

	for _, limit := range []int64{1 << 20, 0} {
		if limit > 0 {
			require.NoError(t, btrfs.Limit(parent, group, limit))
		} else {
			require.NoError(t, btrfs.Unlimit(parent, group))
		}

		counted, err := quotas.Read(group)
		require.NoError(t, err)
		require.Equal(t, limit, counted.Limit)
		require.Positive(t, counted.Referenced, "want: the group counts its subvolume")
		require.Positive(t, counted.Exclusive, "want: the group counts what only its subvolume refers to")
	}

	require.NoError(t, btrfs.Commit(parent))

	members, err := btrfs.Members(parent, pool)
	require.NoError(t, err)
	require.Equal(t, []btrfs.Group{group}, members)

	members, err = btrfs.Members(parent, group)
	require.NoError(t, err)
	require.Empty(t, members, "want: the group of a subvolume has no members")

	parents, err := btrfs.Parents(parent, group)
	require.NoError(t, err)
	require.Equal(t, []btrfs.Group{pool}, parents)

	parents, err = btrfs.Parents(parent, pool)
	require.NoError(t, err)
	require.Empty(t, parents, "want: the outermost group has no parents")

	groups, err := btrfs.Groups(parent)
	require.NoError(t, err)
	require.Subset(t, groups, []btrfs.Group{group, pool})

	times, err := btrfs.Unassign(parent, group, pool)
	require.NoError(t, err)
	require.Equal(t, 1, times, "want: the membership was recorded once")

	times, err = btrfs.Unassign(parent, group, pool)
	require.NoError(t, err)
	require.Zero(t, times, "want: a group that is no member is no error")

	require.NoError(t, btrfs.Assign(parent, group, pool))
	require.NoError(t, btrfs.Commit(parent))
	require.ErrorIs(t, btrfs.RemoveGroup(parent, group), unix.EBUSY)

	for range 2 {
		require.NoError(t, btrfs.RemoveGroup(parent, pool), "want: a missing group is no error")
	}

	require.NoError(t, btrfs.Commit(parent))

	groups, err = btrfs.Groups(parent)
	require.NoError(t, err)
	require.NotContains(t, groups, pool)
	require.NoError(t, btrfs.Unlimit(parent, pool), "want: a missing group needs no limit removed")
	require.ErrorIs(t, btrfs.Limit(parent, pool, 1), unix.ENOENT)
	require.ErrorIs(t, btrfs.Assign(parent, group, pool), unix.EINVAL)
}

// TestOtherFilesystemsAreRefused: what only a btrfs has is an error there.
func TestOtherFilesystemsAreRefused(t *testing.T) {
	t.Parallel()

	elsewhere := open(t, "/proc")

	for name, call := range map[string]func() error{
		"uuid":      func() error { _, err := btrfs.UUID(elsewhere); return err },
		"id":        func() error { _, err := btrfs.ID(elsewhere); return err },
		"create":    func() error { return btrfs.Create(elsewhere, "a") },
		"snapshot":  func() error { return btrfs.Snapshot(elsewhere, elsewhere, "a") },
		"read-only": func() error { return btrfs.SetReadOnly(elsewhere, true) },
		"destroy":   func() error { return btrfs.DestroyAll(elsewhere, "a", 256) },
		"inside":    func() error { _, err := btrfs.AllInside(elsewhere, 256); return err },
		"from":      func() error { _, err := btrfs.From(elsewhere, 256); return err },
		"exists":    func() error { _, err := btrfs.Exists(elsewhere, 256); return err },
		"place":     func() error { _, _, err := btrfs.PlaceOf(elsewhere, 256); return err },
		"commit":    func() error { return btrfs.Commit(elsewhere) },
		"enable":    func() error { return btrfs.Enable(elsewhere) },
		"group":     func() error { return btrfs.CreateGroup(elsewhere, btrfs.GroupOf(1, 1)) },
		"ungroup":   func() error { return btrfs.RemoveGroup(elsewhere, btrfs.GroupOf(1, 1)) },
		"remove":    func() error { return btrfs.RemoveGroup(elsewhere, btrfs.GroupOf(0, 1)) },
		"assign":    func() error { return btrfs.Assign(elsewhere, btrfs.GroupOf(0, 1), btrfs.GroupOf(1, 1)) },
		"unassign": func() error {
			_, err := btrfs.Unassign(elsewhere, btrfs.GroupOf(0, 1), btrfs.GroupOf(1, 1))
			return err
		},
		"limit":   func() error { return btrfs.Limit(elsewhere, btrfs.GroupOf(0, 1), 1) },
		"unlimit": func() error { return btrfs.Unlimit(elsewhere, btrfs.GroupOf(0, 1)) },
		"groups":  func() error { _, err := btrfs.Groups(elsewhere); return err },
		"members": func() error { _, err := btrfs.Members(elsewhere, btrfs.GroupOf(1, 1)); return err },
	} {
		require.ErrorIs(t, call(), unix.ENOTTY, name)
	}

	closed, err := os.Open("/")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	_, err = btrfs.IsSubvolume(closed)
	require.ErrorIs(t, err, unix.EBADF)

	_, err = btrfs.IsFilesystem(closed)
	require.ErrorIs(t, err, unix.EBADF)

	long := strings.Repeat("n", 5000)
	require.ErrorIs(t, btrfs.Snapshot(elsewhere, elsewhere, long), unix.ENAMETOOLONG)
	require.ErrorIs(t, btrfs.Destroy(elsewhere, long), unix.ENAMETOOLONG)
}
