package pool_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

func namesOf(pools []*pool.Pool) []string {
	var names []string
	for _, each := range pools {
		names = append(names, each.Name())
	}

	return names
}

// isClosed reports whether a channel is closed.
func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// TestSetServesOpenedPools: a pool is unavailable until it is served and from its failure on; the
// set of ephemeral pools follows.
func TestSetServesOpenedPools(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	one, two := filepath.Join(root, "one"), filepath.Join(root, "two")
	set := pool.NewSet(map[string]string{"two": two, "one": one})
	inner := set.Ephemeral()

	for _, each := range []*pool.Set{set, inner} {
		require.Equal(t, []string{"one", "two"}, each.Names())
		require.Equal(t, "one", each.Default(), "without a pool called default")
		require.True(t, each.Has("one"), "a pool of the set")
		require.False(t, each.Has("none"), "a pool that is not in the set")
		require.Empty(t, each.Served(), "want: no pool is served before it is opened")

		_, err := each.Get("one")
		require.ErrorIs(t, err, pool.ErrUnavailable)
		_, err = each.Get("none")
		require.ErrorIs(t, err, pool.ErrUnknown)
		require.NotErrorIs(t, err, pool.ErrUnavailable)
	}

	require.Error(t, set.Failure("one"), "it is not opened yet")
	require.NoError(t, set.Failure("none"))
	require.Equal(t, one, set.Path("one"))
	require.Empty(t, set.Path("none"), "want: a pool that is not in the set has no path")

	changes := []<-chan struct{}{set.Changed(), inner.Changed()}
	moved := filepath.Join(root, "moved")
	opened, err := pool.Open("one", moved, pool.Options{})
	require.NoError(t, err)
	require.False(t, isClosed(changes[0]) || isClosed(changes[1]), "a change without one")
	set.Serve(opened)
	require.True(t, isClosed(changes[0]) && isClosed(changes[1]), "a change that is not announced")
	require.False(t, isClosed(set.Changed()), "one change is announced twice")

	got, err := set.Get("one")
	require.NoError(t, err)
	require.Same(t, opened, got, "want: the pool that is served")
	require.NoError(t, set.Failure("one"))
	require.Equal(t, moved, set.Path("one"))
	require.Equal(t, []string{"one"}, namesOf(set.Served()))

	within, err := inner.Get("one")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(moved, "ephemeral"), within.Path())

	again, err := inner.Get("one")
	require.NoError(t, err)
	require.Same(t, within, again, "want: one pool of ephemeral volumes for each pool")

	changed, reason := set.Changed(), errors.New("the reason")
	require.NoError(t, set.Fail("one", reason))
	require.True(t, isClosed(changed), "a failure that is not announced")
	require.ErrorIs(t, set.Failure("one"), reason)

	_, err = set.Get("one")
	require.ErrorIs(t, err, reason)
	require.ErrorIs(t, err, pool.ErrUnavailable)
	require.ErrorIs(t, opened.Images.Create(newID(t), mebi, false), os.ErrClosed, "a pool that has failed is closed")
	require.ErrorIs(t, within.Images.Create(newID(t), mebi, false), os.ErrClosed, "and the one inside")
	require.NoError(t, set.Fail("one", reason), "it fails again")
	require.NoError(t, set.Close())
}

func TestTheDefaultPoolIsCalledDefault(t *testing.T) {
	t.Parallel()
	require.Equal(t, "default", pool.NewSet(map[string]string{"another": "/a", "default": "/b"}).Default())
	require.Equal(t, "default", pool.NewSet(nil).Default())
}

// TestPoolsOfASetAreLockedAndClosed: a second process finds the lock, and a closed set serves no pool.
func TestPoolsOfASetAreLockedAndClosed(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		set, err := poolset.Open(map[string]string{"one": filepath.Join(root, "one"), "two": filepath.Join(root, "two")})
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two"}, namesOf(set.Served()))

		second, err := poolset.Open(map[string]string{"two": filepath.Join(root, "two")})
		require.NoError(t, err)
		require.NoError(t, second.Served()[0].LockAsController("another"))
		require.ErrorIs(t, set.Served()[1].LockAsController("the first"), pool.ErrControllerRunning)
		require.ErrorIs(t, set.Served()[1].LockForReading(), pool.ErrControllerRunning)
		require.NoError(t, second.Close())
		require.NoError(t, set.Close())
		require.Empty(t, set.Served(), "want: a closed set serves no pool")

		file := filepath.Join(root, "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))

		_, err = poolset.Open(map[string]string{"one": filepath.Join(root, "one"), "bad": file})
		require.ErrorIs(t, err, pool.ErrNotDirectory)
	})
}

// TestInspectChangesNothing: what is missing in a directory is empty.
func TestInspectChangesNothing(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	p, err := pool.Inspect("default", directory)
	require.NoError(t, err)

	found, err := listed(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, found, "want: a directory without volumes has none")
	require.NoError(t, p.Close())

	left, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Empty(t, left, "the pool was only to be inspected")

	missing := filepath.Join(directory, "missing")
	_, err = pool.Inspect("default", missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoDirExists(t, missing)
}

func tmpfs(t *testing.T, size string) string {
	t.Helper()
	namespace.NeedRoot(t)

	directory := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "size="+size))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, unix.MNT_DETACH)) })

	return directory
}

// TestCapacityOfAnEmbeddedPool has pools of 32 MiB with an image in another filesystem.
func TestCapacityOfAnEmbeddedPool(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		host string
		// size and has are those of the image, used is inside of the pool, in MiB.
		size, has, used  int
		total, available int
	}{
		"the host has space for all":              {host: "64m", size: 32, total: 32, available: 32},
		"in use and allocated":                    {host: "64m", size: 32, has: 8, used: 8, total: 32, available: 24},
		"the host has less":                       {host: "16m", size: 32, has: 4, used: 4, total: 16, available: 12},
		"in use, and not allocated":               {host: "16m", size: 32, has: 4, used: 8, total: 16, available: 8},
		"the log is not allocated":                {host: "16m", size: 34, has: 4, used: 8, total: 16, available: 6},
		"more allocated than in use":              {host: "16m", size: 34, has: 8, used: 1, total: 16, available: 8},
		"the host has less than it owes":          {host: "8m", size: 32, has: 4, used: 16, total: 8, available: 0},
		"a log that is larger than what is owed ": {host: "16m", size: 30, has: 0, used: 2, total: 16, available: 14},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			inside, image := tmpfs(t, "32m"), filepath.Join(tmpfs(t, test.host), "pool.img")
			require.NoError(t, os.WriteFile(image, make([]byte, test.has*mebi), 0o600))
			require.NoError(t, os.Truncate(image, int64(test.size)*mebi))
			require.NoError(t, os.WriteFile(filepath.Join(inside, "ballast"), make([]byte, test.used*mebi), 0o600))

			p, err := pool.Open("default", inside, pool.Options{HostImage: image})
			require.NoError(t, err)

			found, err := p.Capacity()
			require.NoError(t, err)
			require.Equal(t, pool.Capacity{Total: int64(test.total) * mebi, Available: int64(test.available) * mebi}, found)

			within, err := p.Ephemeral()
			require.NoError(t, err)

			same, err := within.Capacity()
			require.NoError(t, err)
			require.Equal(t, found, same, "the pool of ephemeral volumes is in the same image")

			require.NoError(t, os.Remove(image))
			_, err = p.Capacity()
			require.ErrorIs(t, err, os.ErrNotExist, "the image is missing")
			require.NoError(t, p.Close())
		})
	}
}

// TestToolFailures: an error of a tool in a full pool is that of the pool.
func TestToolFailures(t *testing.T) {
	t.Parallel()

	p := openPool(t, tmpfs(t, "4m"))
	cause := errors.New("input/output error")

	require.NotErrorIs(t, p.ExplainToolFailure(cause), pool.ErrNoSpace)
	require.NoError(t, os.WriteFile(filepath.Join(p.Path(), "ballast"), make([]byte, 3*mebi), 0o600))
	require.NotErrorIs(t, p.ExplainToolFailure(cause), pool.ErrNoSpace, "1 MiB is free")
	require.NoError(t, os.WriteFile(filepath.Join(p.Path(), "more"), []byte("more"), 0o600))
	require.ErrorIs(t, p.ExplainToolFailure(cause), pool.ErrNoSpace)
	require.ErrorIs(t, p.ExplainToolFailure(cause), cause)
	require.NoError(t, p.ExplainToolFailure(nil))
}
