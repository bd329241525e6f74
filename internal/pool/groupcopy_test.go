package pool_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/tenant"
)

// groupOf prepares copies of images, and a group copy of them.
func groupOf(tb testing.TB, p *pool.Pool, sources ...pool.Object) (group *pool.GroupCopy, targets []pool.Object, members []*pool.ImageCopy) {
	tb.Helper()

	for _, source := range sources {
		target := snapshotOf(tb, source)

		info, err := os.Stat(placeOf(p, source))
		require.NoError(tb, err)

		copied, err := p.NewCopy(p, source, target, pool.CopyOptions{SourceBytes: info.Size()})
		require.NoError(tb, err)

		member, isImage := copied.Image()
		require.True(tb, isImage, "want: the copy of an image")

		targets, members = append(targets, target), append(members, member)
	}

	group, err := p.NewGroupCopy(newID(tb), members)
	require.NoError(tb, err)

	return group, targets, members
}

// TestGroupCopyIsOfOnePointInTime overwrites images between Take and CopyData, replaces one and
// grows one.
func TestGroupCopyIsOfOnePointInTime(t *testing.T) {
	t.Parallel()

	p := newPool(t, cow, 512*mebi)
	written, replaced, grown := newImage(t, p, 16*mebi), newImage(t, p, 16*mebi), newImage(t, p, 16*mebi)
	group, targets, members := groupOf(t, p, written, replaced, grown)

	var want []string
	for _, source := range []pool.Object{written, replaced, grown} {
		want = append(want, checksum(t, placeOf(p, source)))
	}

	require.NoError(t, group.Take())

	image, err := os.OpenFile(placeOf(p, written), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = image.WriteAt(randomBytes(mebi), 0)
	require.NoError(t, err)
	require.NoError(t, image.Close())

	other := newImage(t, p, 16*mebi)
	require.NoError(t, os.Rename(placeOf(p, other), placeOf(p, replaced)))
	require.NoError(t, p.Images.Grow(grown.ID, pool.Growth{To: 32 * mebi}))

	require.NoError(t, group.CopyData(t.Context()))
	require.NoError(t, group.Close())

	for i, member := range members {
		_, err := member.Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, member.Abort())
		require.Equal(t, want[i], checksum(t, placeOf(p, targets[i])))
	}

	require.Empty(t, scratchOf(t, p), "want: no scratch file is left")
}

// TestGroupCopyAfterACrash abandons a group copy between each two steps, as a killed driver does.
func TestGroupCopyAfterACrash(t *testing.T) {
	t.Parallel()

	p := newPool(t, cow, 512*mebi)
	sources := []pool.Object{newImage(t, p, 16*mebi), newImage(t, p, 16*mebi)}

	for steps := range 3 {
		group, targets, members := groupOf(t, p, sources...)

		if steps >= 1 {
			require.NoError(t, group.Take())
		}

		if steps >= 2 {
			require.NoError(t, group.CopyData(t.Context()))
		}

		require.NotEmpty(t, scratchOf(t, p), "want: the interrupted copy has scratch files")

		// While the process lives its scratch stays.
		require.NoError(t, p.RemoveStaleScratch(t.Context()))
		require.NotEmpty(t, scratchOf(t, p), "want: the scratch files of a living process stay")

		group.Abandon()

		for _, member := range members {
			require.NoError(t, member.File().Close())
		}

		// It is a killed process's now, which another one cleans up.
		require.NoError(t, openPool(t, p.Path()).RemoveStaleScratch(t.Context()))

		for _, target := range targets {
			nothingHalfMade(t, p, target)
		}
	}

	// After a power failure the lock file may be missing.
	group, _, members := groupOf(t, p, sources...)
	require.NoError(t, group.Take())
	group.Abandon()

	for _, member := range members {
		require.NoError(t, member.Abort())
	}

	for _, name := range scratchOf(t, p) {
		if filepath.Ext(name) != "" {
			require.NoError(t, os.Remove(filepath.Join(p.Path(), "scratch", name)))
		}
	}

	require.NotEmpty(t, scratchOf(t, p), "want: the scratch files are there before the cleaning")
	require.NoError(t, p.RemoveStaleScratch(t.Context()))
	require.Empty(t, scratchOf(t, p), "want: no scratch file of the crash is left")
}

// TestGroupCopyInASubvolume takes group copies of pools at each path that a pool may have in a
// btrfs, with another subvolume inside.
func TestGroupCopyInASubvolume(t *testing.T) {
	t.Parallel()

	top := filepath.Dir(newPool(t, cow, 512*mebi).Path())
	directory, err := os.Open(top)
	require.NoError(t, err)

	defer directory.Close()

	for _, name := range []string{"own", "other"} {
		require.NoError(t, btrfs.Create(directory, name))
	}

	for _, place := range []string{"own", "other/deep/below", "plain/below", "link/below"} {
		if place == "link/below" {
			require.NoError(t, os.Symlink("other", filepath.Join(top, "link")))
		}

		p := openPool(t, filepath.Join(top, place))

		images, err := os.Open(filepath.Join(p.Path(), "directories"))
		require.NoError(t, err)
		require.NoError(t, btrfs.Create(images, newID(t)))
		require.NoError(t, images.Close())

		source := newImage(t, p, 16*mebi)
		group, targets, members := groupOf(t, p, source)
		require.NoError(t, group.Take())
		require.NoError(t, group.CopyData(t.Context()))
		require.NoError(t, group.Close())
		_, err = members[0].Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, members[0].Abort())
		sameContent(t, p, source, p, targets[0])
		require.Empty(t, scratchOf(t, p), "want: no scratch file is left")
	}
}

// TestGroupCopyIsRefused: on other filesystems, and where the root of the subvolume is not mounted.
func TestGroupCopyIsRefused(t *testing.T) {
	t.Parallel()

	outside := newPool(t, cow, 512*mebi)
	bound := t.TempDir()
	require.NoError(t, unix.Mount(outside.Path(), bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH)) })

	for name, p := range map[string]*pool.Pool{
		"xfs": newPool(t, reflink, 512*mebi), "ext4": newPool(t, plain, 512*mebi), "a directory of a subvolume": openPool(t, bound),
	} {
		source := newImage(t, p, 16*mebi)
		copied, err := p.NewCopy(p, source, snapshotOf(t, source), pool.CopyOptions{})
		require.NoError(t, err, name)

		member, _ := copied.Image()
		_, err = p.NewGroupCopy(newID(t), []*pool.ImageCopy{member})
		require.ErrorIs(t, err, pool.ErrNoGroupCopy, name)
		require.NoError(t, member.Abort())
		require.Empty(t, scratchOf(t, p), name)
	}
}

// TestOnlyTheOwnerTakesAGroupCopy of a subvolume.
func TestOnlyTheOwnerTakesAGroupCopy(t *testing.T) {
	t.Parallel()

	p := newPool(t, cow, 512*mebi)
	group, _, members := groupOf(t, p, newImage(t, p, mebi))
	scratch := filepath.Join(p.Path(), "scratch")
	require.NoError(t, os.Chmod(scratch, 0o777))

	err := tenant.Call(t, scratch, func(string) error { return group.Take() })
	require.ErrorIs(t, err, pool.ErrNoGroupCopy)
	errtext.Require(t, err, "only the owner of the subvolume")
	require.NoError(t, group.Take())
	require.NoError(t, errors.Join(group.Close(), members[0].Abort()))
}

// TestGroupCopyOfAMissingImage removes an image between the preparation and the snapshot.
func TestGroupCopyOfAMissingImage(t *testing.T) {
	t.Parallel()

	p := newPool(t, cow, 512*mebi)
	source := newImage(t, p, 16*mebi)
	group, targets, _ := groupOf(t, p, source)

	require.NoError(t, os.Remove(placeOf(p, source)))
	require.NoError(t, group.Take())
	require.ErrorIs(t, group.CopyData(t.Context()), pool.ErrMissing)
	require.NoError(t, group.Close())
	nothingHalfMade(t, p, targets[0])
}

// TestGroupCopyOfATruncatedImage: members whose images lose data before the point in time fail.
func TestGroupCopyOfATruncatedImage(t *testing.T) {
	t.Parallel()

	p := newPool(t, cow, 512*mebi)
	source := newImage(t, p, 16*mebi)
	group, targets, _ := groupOf(t, p, source)

	require.NoError(t, os.Truncate(placeOf(p, source), mebi))
	require.NoError(t, group.Take())
	require.ErrorIs(t, group.CopyData(t.Context()), pool.ErrTruncated)
	require.NoError(t, group.Close())
	nothingHalfMade(t, p, targets[0])
}

// TestGroupCopyOfUncowedImages: images without copy on write (chattr +C) are cloned like others.
func TestGroupCopyOfUncowedImages(t *testing.T) {
	t.Parallel()

	top := filepath.Dir(newPool(t, cow, 512*mebi).Path())
	place := filepath.Join(top, "nocow")
	require.NoError(t, os.Mkdir(place, 0o700))

	output, err := child.Command(t, "chattr", "+C", place).CombinedOutput()
	require.NoError(t, err, "%s", output)

	p := openPool(t, place)
	source := newImage(t, p, 16*mebi)
	before := checksum(t, placeOf(p, source))
	group, targets, members := groupOf(t, p, source)
	require.NoError(t, group.Take())

	image, err := os.OpenFile(placeOf(p, source), os.O_WRONLY|unix.O_DSYNC, 0)
	require.NoError(t, err)
	_, err = image.WriteAt(randomBytes(mebi), 0)
	require.NoError(t, err)
	require.NoError(t, image.Close())

	require.NoError(t, group.CopyData(t.Context()))
	require.NoError(t, group.Close())
	_, err = members[0].Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, members[0].Abort())
	require.Equal(t, before, checksum(t, placeOf(p, targets[0])))
}
