package pool_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/tenant"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// newTenants makes limited volumes in which AsTenant may write, and returns their groups.
func newTenants(t *testing.T, p *pool.Pool) (objects [2]pool.Object, paths [2]string, groups [2]btrfs.Group) {
	t.Helper()

	for i := range objects {
		objects[i], paths[i] = newLimited(t, p)
		tenant.Own(t, paths[i])
		groups[i] = btrfs.GroupOf(1, subvolumeID(t, paths[i]))
	}

	return objects, paths, groups
}

func subvolumeID(t *testing.T, path string) uint64 {
	t.Helper()

	directory, err := os.Open(path)
	require.NoError(t, err)

	defer directory.Close()

	id, err := btrfs.ID(directory)
	require.NoError(t, err)

	return id
}

// evade makes a subvolume with chosen groups and fills it, as a tenant.
func evade(t *testing.T, path string, length int, groups ...btrfs.Group) {
	t.Helper()

	name := filepath.Base(path)

	require.NoError(t, tenant.Call(t, filepath.Dir(path), func(parent string) error {
		if err := testpool.MakeSubvolume(parent, name, 0, groups...); err != nil {
			return err
		}

		return write(filepath.Join(parent, name, "file"), length)
	}))
}

// usageOf observes a volume.
func usageOf(t *testing.T, p *pool.Pool, object pool.Object) int64 {
	t.Helper()
	groupsOf(t, p) // what is counted is what was committed

	usage, limited, err := p.Directories.Quota(object.ID)
	require.NoError(t, err)
	require.True(t, limited, "want: the directory has a limit")
	require.EqualValues(t, limitBytes, usage.LimitBytes, "want: the directory has its limit")

	return usage.Bytes
}

// TestSubvolumesCannotStayOutsideOfTheLimit has users that choose the quota groups of a subvolume: it
// counts for their own volume from the next observation on, and for no other.
func TestSubvolumesCannotStayOutsideOfTheLimit(t *testing.T) {
	const slack = mebi

	// A group may be named twice, which the kernel's counts do not bear.
	for name, chosen := range map[string]func(own, other btrfs.Group) []btrfs.Group{
		"none":          func(_, _ btrfs.Group) []btrfs.Group { return nil },
		"another":       func(_, other btrfs.Group) []btrfs.Group { return []btrfs.Group{other} },
		"both":          func(own, other btrfs.Group) []btrfs.Group { return []btrfs.Group{own, other} },
		"another twice": func(_, other btrfs.Group) []btrfs.Group { return []btrfs.Group{other, other} },
		"own twice":     func(own, _ btrfs.Group) []btrfs.Group { return []btrfs.Group{own, own} },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, cow, 512*mebi)
			before := groupsOf(t, p)
			objects, paths, groups := newTenants(t, p)
			evade(t, filepath.Join(paths[0], "inside"), limitBytes/2, chosen(groups[0], groups[1])...)

			for _, first := range []int{1, 0, 1} {
				usageOf(t, p, objects[first])
			}

			require.InDelta(t, limitBytes/2, usageOf(t, p, objects[0]), slack, "want: data in the foreign subvolume counts for the volume that has it")
			require.InDelta(t, 0, usageOf(t, p, objects[1]), slack, "want: the other volume has no data")
			require.Equal(t, name != "own twice", p.Directories.LimitEvadedFor(objects[0].ID) > 0, "want: the volume that evaded its limit is reported")
			require.Zero(t, p.Directories.LimitEvadedFor(objects[1].ID), "want: the other volume has not evaded its limit")

			require.NoError(t, write(filepath.Join(paths[1], "file"), limitBytes/2), "the other volume has its space")
			require.ErrorIs(t, write(filepath.Join(paths[0], "inside", "more"), limitBytes), unix.EDQUOT)

			for _, each := range objects {
				require.NoError(t, p.Remove(t.Context(), each))
				require.NoDirExists(t, placeOf(p, each))
			}

			requireGroups(t, p, before)
		})
	}
}

// TestSubvolumesCannotKeepVolumesFromBeingRemoved removes volumes whose groups other volumes use, and
// which contain what the kernel refuses to remove.
func TestSubvolumesCannotKeepVolumesFromBeingRemoved(t *testing.T) {
	for name, obstruct := range map[string]func(t *testing.T, paths [2]string, groups [2]btrfs.Group){
		"members elsewhere": func(t *testing.T, paths [2]string, groups [2]btrfs.Group) {
			t.Helper()
			evade(t, filepath.Join(paths[0], "one"), mebi, groups[1])
			evade(t, filepath.Join(paths[0], "two"), mebi, groups[1], groups[1], groups[0], groups[0])
		},
		"limits of their own": func(t *testing.T, paths [2]string, _ [2]btrfs.Group) {
			t.Helper()
			inside := filepath.Join(paths[0], "inside")
			require.NoError(t, tenant.Call(t, paths[0], func(path string) error {
				if err := testpool.MakeSubvolume(path, "inside", 256*kibi); err != nil {
					return err
				}

				return testpool.MakeSubvolume(filepath.Join(path, "inside"), "innermost", 0)
			}))
			require.ErrorIs(t, write(filepath.Join(inside, "file"), mebi), unix.EDQUOT)
		},
		"full, with another's group": func(t *testing.T, paths [2]string, groups [2]btrfs.Group) {
			t.Helper()
			evade(t, filepath.Join(paths[0], "inside"), mebi, groups[1])
			evade(t, filepath.Join(paths[0], "inside", "innermost"), mebi)
			require.ErrorIs(t, write(filepath.Join(paths[1], "file"), 2*limitBytes), unix.EDQUOT)
		},
		"read-only": func(t *testing.T, paths [2]string, _ [2]btrfs.Group) {
			t.Helper()
			inside := filepath.Join(paths[0], "inside")
			evade(t, inside, mebi)
			evade(t, filepath.Join(inside, "innermost"), mebi)

			output, err := child.Command(t, "btrfs", "property", "set", inside, "ro", "true").CombinedOutput()
			require.NoError(t, err, "%s", output)
		},
	} {
		for _, first := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				p := newPool(t, cow, 512*mebi)
				before := groupsOf(t, p)
				objects, paths, groups := newTenants(t, p)
				obstruct(t, paths, groups)

				for _, each := range []pool.Object{objects[first], objects[1-first]} {
					require.NoError(t, p.Remove(t.Context(), each))
					require.NoDirExists(t, placeOf(p, each))
				}

				requireGroups(t, p, before)
			})
		}
	}
}

// TestRemovedSubvolumesStayCounted removes subvolumes whose space is still in use: it counts for the
// volume in which they were, and for no other.
func TestRemovedSubvolumesStayCounted(t *testing.T) {
	const slack = mebi

	p := newPool(t, cow, 512*mebi)
	objects, paths, groups := newTenants(t, p)

	observe := func() {
		for _, each := range objects {
			usageOf(t, p, each)
		}
	}

	observe()

	for i, name := range []string{"own", "other"} {
		inside := filepath.Join(paths[0], name)
		evade(t, inside, limitBytes/4, groups[i])

		if i == 0 {
			observe()
		}

		output, err := child.Command(t, "cp", "--reflink=always", filepath.Join(inside, "file"), inside+"-copy").CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.NoError(t, os.RemoveAll(inside))
	}

	require.InDelta(t, 0, usageOf(t, p, objects[1]), slack, "want: removed data does not count")
	require.InDelta(t, limitBytes/4, usageOf(t, p, objects[0]), slack, "want: data of the other volume counts")
}

// TestGrownVolumesAreConfined has no other observation of a volume than that of new subvolumes.
func TestGrownVolumesAreConfined(t *testing.T) {
	p := newPool(t, cow, 512*mebi)
	objects, paths, groups := newTenants(t, p)

	grown := func() []string {
		evaded, err := p.ConfineGrown()
		require.NoError(t, err)

		return evaded
	}

	require.Empty(t, grown(), "want: no volume has evaded its limit")
	evade(t, filepath.Join(paths[0], "inside"), mebi)
	require.Equal(t, []string{objects[0].ID}, grown())
	require.Empty(t, grown(), "want: the volume is reported once")

	output, err := child.Command(t, "btrfs", "subvolume", "create", filepath.Join(paths[1], "allowed")).CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Empty(t, grown(), "want: a subvolume within the limit is not reported")

	evade(t, filepath.Join(paths[0], "inside", "innermost"), mebi, groups[1])
	require.Equal(t, []string{objects[0].ID}, grown())
	require.ErrorIs(t, write(filepath.Join(paths[0], "inside", "innermost", "more"), limitBytes), unix.EDQUOT)
}
