package pool

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

func imageOf(id string) Object { return Object{ID: id, Backing: volume.BackingImage} }

// TestEachBackingHasItsCapacity: an image its size, and a directory its limit, if it has one.
func TestEachBackingHasItsCapacity(t *testing.T) {
	t.Parallel()

	p, quotas := newQuotaPool(t)
	require.NoError(t, p.Images.Create(quotaID, 7, false))

	for _, each := range []struct {
		backing   volume.Backing
		sizeLimit volume.SizeLimit
		bytes     int64
	}{
		{volume.BackingImage, "", 7},
		{volume.BackingDirectory, volume.SizeByQuota, 10},
	} {
		backing := p.Backing(each.backing)
		require.Equal(t, each.sizeLimit, backing.SizeLimit(), "want: the limit of a new %s", each.backing)

		bytes, limited, err := backing.Capacity(quotaID)
		require.NoError(t, err)
		require.True(t, limited, "want: the size of the %s is limited", each.backing)
		require.Equal(t, each.bytes, bytes, "want: the size of the %s", each.backing)

		_, _, err = backing.Capacity(quotaOtherID)
		require.ErrorIs(t, err, ErrMissing, "want: no other %s", each.backing)
		require.ErrorIs(t, backing.EnsureSize(quotaOtherID, 1, true), ErrMissing, "want: no other %s", each.backing)
	}

	delete(quotas.limits, quotaID)

	_, limited, err := p.Directories.Capacity(quotaID)
	require.NoError(t, err)
	require.False(t, limited, "want: a directory without a limit has no size")
}

// TestTruncatedImagesAreFound by the size that they have to have.
func TestTruncatedImagesAreFound(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	require.NoError(t, p.Images.Create(quotaID, 7, false))
	require.NoError(t, p.Images.EnsureSize(quotaID, 6, false), "want: it may be larger")
	require.NoError(t, p.Images.EnsureSize(quotaID, 7, false))
	require.ErrorIs(t, p.Images.EnsureSize(quotaID, 8, false), ErrTruncated)
}

// TestLostLimitsAreSetAgain: of the directories that are to have one.
func TestLostLimitsAreSetAgain(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		has, limited bool
		failing      string
		want         int64
		failure      error
	}{
		"it is lost":    {limited: true, want: 7},
		"it is there":   {has: true, limited: true, want: 10},
		"there is none": {},
		"it is unknown": {limited: true, failing: "Usage", failure: errQuota},
		"it is not set": {limited: true, failing: "Limit", want: 7, failure: errQuota},
	} {
		p, quotas := newQuotaPool(t)

		if !test.has {
			delete(quotas.limits, quotaID)
		}

		quotas.failing = test.failing
		require.ErrorIs(t, p.Directories.EnsureSize(quotaID, 7, test.limited), test.failure, name)
		require.Equal(t, test.want, quotas.limits[quotaID], "want: the limit is set if it is lost, %s", name)
	}
}

// TestOnlyDirectoriesHaveMounts in them, and only images a device and a filesystem.
func TestOnlyDirectoriesHaveMounts(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	directory, image := directoryOf(quotaID), imageOf(quotaID)

	require.NoError(t, os.Remove(p.ObjectPath(directory)+"/file"))
	require.NoError(t, os.Remove(p.ObjectPath(directory)))

	for _, object := range []Object{directory, image} {
		require.NoError(t, os.Symlink("/proc", p.ObjectPath(object)))
	}

	mounts, err := p.Directories.MountsIn(directory)
	require.NoError(t, err)
	require.NotEmpty(t, mounts, "want: what is mounted in a directory")

	mounts, err = p.Images.MountsIn(image)
	require.NoError(t, err)
	require.Empty(t, mounts, "want: nothing is mounted in an image")

	require.NoError(t, p.Directories.CheckDetached(t.Context(), quotaID), "want: a directory is attached nowhere")
	require.Error(t, p.Images.CheckDetached(t.Context(), quotaID), "want: a symlink is no image")
	require.NoError(t, p.Directories.CheckGrowth(directory, 1<<62), "want: a directory has no filesystem of its own")
	require.Error(t, p.Images.CheckGrowth(image, 1<<62), "want: a symlink is no image")
}

// TestEmptyObjectsAreKnown by their usage: an image by its blocks, a directory also by its files.
func TestEmptyObjectsAreKnown(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		object Object
		usage  tree.Usage
		want   bool
	}{
		{imageOf(quotaID), tree.Usage{Inodes: 1}, true},
		{imageOf(quotaID), tree.Usage{Bytes: 512, Inodes: 1}, false},
		{directoryOf(quotaID), tree.Usage{Inodes: 1}, true},
		{directoryOf(quotaID), tree.Usage{Bytes: 4096, Inodes: 1}, true},
		{directoryOf(quotaID), tree.Usage{Bytes: 4096, Inodes: 2}, false},
		{directoryOf(quotaID), tree.Usage{Inodes: 2}, true},
	} {
		require.Equal(t, test.want, test.object.IsEmpty(test.usage), "want: %s with %+v", test.object.Backing, test.usage)
	}
}
