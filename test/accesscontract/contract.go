// Package accesscontract tests an implementation of access.Access by the contract of that interface.
package accesscontract

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Volume is a volume that is used in one way of access, alone in its directories.
type Volume struct {
	Way access.Access
	// V is the newest record of the volume, and Publication the one that it gets.
	V           *staged.Volume
	Publication staged.Publication
	Records     *staged.Records[*staged.Volume]
	Pools       staged.Pools
	// Dirs are those in which the paths are.
	Dirs *mount.AllowedDirs
	// Store makes the volume's image or directory of that size in its pool.
	Store     func(t *testing.T)
	SizeBytes int64
}

// Run tests that the way of access of a volume satisfies the contract of access.Access. The volume is not
// stored yet.
func Run(t *testing.T, u *Volume) {
	t.Helper()

	isStaged := func(want bool) {
		t.Helper()

		got, err := u.Way.IsStaged(u.V)
		require.NoError(t, err)
		require.Equal(t, want, got, "staged")

		got, err = u.Way.IsInUse(u.V)
		require.NoError(t, err)
		require.Equal(t, want, got, "in use")
	}
	isPublished := func(want bool) {
		t.Helper()

		got, err := u.Way.IsPublished(u.V, u.Publication)
		require.NoError(t, err)
		require.Equal(t, want, got, "published")
	}

	require.ErrorIs(t, u.Pools.CheckStored(u.V), pool.ErrMissing)
	u.Store(t)
	require.NoError(t, u.Pools.CheckStored(u.V))

	isStaged(false)
	require.NoError(t, u.Way.Unstage(t.Context(), u.V), "a volume that is not staged can be unstaged")

	require.NoError(t, u.Stage(t))
	isStaged(true)
	isPublished(false)

	require.NoError(t, u.Publish(t))
	isPublished(true)
	require.NoError(t, u.Way.Republish(t.Context(), u.V, u.Publication))
	isPublished(true)

	u.checkStats(t)
	u.checkFrozen(t)

	got, err := u.Way.Expand(t.Context(), u.V, u.V.StagingPath, &csi.CapacityRange{RequiredBytes: u.SizeBytes})
	require.NoError(t, err)
	require.Equal(t, u.SizeBytes, got, "want: Expand returns the new size")

	require.NoError(t, u.Unpublish(t))
	isPublished(false)
	require.NoFileExists(t, u.Publication.TargetPath)
	require.NoDirExists(t, u.Publication.TargetPath)
	require.NoError(t, u.Unpublish(t), "a volume that is not published can be unpublished")
	isStaged(true)

	require.NoError(t, u.Way.Unstage(t.Context(), u.V))
	isStaged(false)

	numbers, err := u.Way.Devices(u.V)
	require.NoError(t, err)
	require.Empty(t, numbers, "no device is left")

	require.NoError(t, u.Stage(t), "it can be staged again")
	require.NoError(t, u.Way.Unstage(t.Context(), u.V))
}

// At opens a path beneath Dirs until the test ends.
func (u *Volume) At(t *testing.T, path string) *mount.Target {
	t.Helper()

	found, err := u.Dirs.Target(path)
	require.NoError(t, err)
	t.Cleanup(found.Close)

	return found
}

// Stage stages the volume. It stores the record first, as the node does.
func (u *Volume) Stage(t *testing.T) error {
	t.Helper()
	require.NoError(t, u.Records.Put(t.Context(), u.V))

	err := u.Way.Stage(t.Context(), u.V, u.At(t, u.V.StagingPath))
	if newest, ok := u.Records.Get(u.V.VolumeID); ok {
		u.V = newest
	}

	return err
}

// Publish publishes the volume, with its record.
func (u *Volume) Publish(t *testing.T) error {
	t.Helper()

	published := u.V.Clone()
	published.Publications = []staged.Publication{u.Publication}
	require.NoError(t, u.Records.Put(t.Context(), published))
	u.V = published

	return u.Way.Publish(t.Context(), u.V, u.Publication, u.At(t, u.Publication.TargetPath))
}

// Unpublish undoes Publish.
func (u *Volume) Unpublish(t *testing.T) error {
	t.Helper()

	if err := u.Way.Unpublish(u.V, u.Publication, u.At(t, u.Publication.TargetPath)); err != nil {
		return err
	}

	u.V = u.V.WithoutPublication(u.Publication.TargetPath)

	return u.Records.PutLazily(u.V)
}

func (u *Volume) checkStats(t *testing.T) {
	t.Helper()

	var at *mount.Target
	if !u.V.ExposesRawDevice() {
		at = u.At(t, u.Publication.TargetPath)
	}

	stats, err := u.Way.Stats(t.Context(), u.V, at)
	require.NoError(t, err)
	require.Positive(t, stats.Usage.Bytes.Total, "want: the filesystem has a size")
	require.Equal(t, u.V.ExposesRawDevice(), stats.Filesystem == nil, "only a raw device has no filesystem here")
}

// checkFrozen shows that a volume is frozen, synced, or refused before a copy.
func (u *Volume) checkFrozen(t *testing.T) {
	t.Helper()

	targets := freeze.Targets{}
	require.NoError(t, u.Way.AddFreezeTargets(u.V, &targets))

	numbers, err := u.Way.Devices(u.V)
	require.NoError(t, err)

	switch {
	case !u.V.Parameters.Backing.HasFilesystem():
		require.Empty(t, numbers, "want: a directory has no device")
		require.Equal(t, freeze.Targets{}, targets)
	case u.V.ExposesRawDevice():
		require.Len(t, numbers, 1, "want: a raw volume has one device")
		require.Equal(t, freeze.Targets{Devices: numbers}, targets)
	default:
		require.Len(t, numbers, 1, "want: an image has one device")
		require.Len(t, targets.Filesystems, 1, "want: the filesystem of the image is frozen")
	}

	require.Equal(t, u.V.IsMountedImage(), len(targets.Filesystems) > 0, "want: the filesystem of a mounted image is frozen")
	require.NoError(t, targets.Close())
}
