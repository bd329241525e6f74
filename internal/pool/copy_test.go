package pool_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// roomy is the size of a filesystem for a few small objects; xfs takes no less.
const roomy = 512 * mebi

func TestScratchCopyIsReadAndAborted(t *testing.T) {
	for name, kind := range map[string]string{"shared": reflink, "copied": plain} {
		t.Run(name, func(t *testing.T) {
			from := newPool(t, kind, roomy)
			source := newImage(t, from, 64*mebi)

			copied, err := from.NewCopy(from, source, snapshotOf(t, source), pool.CopyOptions{})
			require.NoError(t, err)

			making, isImage := copied.Image()
			require.True(t, isImage, "want: the copy of an image")
			require.NoError(t, making.CopyData(t.Context()))

			path := making.File().Name()
			require.Equal(t, checksum(t, placeOf(from, source)), checksum(t, path))
			require.NoError(t, making.Abort())
			require.NoFileExists(t, path)
		})
	}
}

func TestACopyOfAnImageHasItsContent(t *testing.T) {
	tests := map[string]struct {
		from, to string // to is another pool, unless empty
		instant  bool
	}{
		"pool that shares blocks":            {from: reflink, instant: true},
		"pool that shares blocks and hashes": {from: cow, instant: true},
		"pool that does not share":           {from: plain},
		"into another pool":                  {from: reflink, to: plain},
		"from another pool":                  {from: plain, to: reflink},
		"between equal pools":                {from: reflink, to: reflink},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			const size = 64 * mebi

			from := newPool(t, test.from, roomy)
			to := from

			if test.to != "" {
				to = newPool(t, test.to, roomy)
			}

			require.Equal(t, test.from != plain, from.Images.Reflinks(), "want: the filesystem reflinks as expected")

			source := newImage(t, from, size)
			require.NoError(t, os.Chown(placeOf(from, source), otherUser, otherUser))

			before := checksum(t, placeOf(from, source))
			snapshot := snapshotOf(t, source)

			var done, total int64

			making, err := to.NewCopy(from, source, snapshot, pool.CopyOptions{Progress: func(nowDone, nowTotal int64) {
				require.GreaterOrEqual(t, nowDone, done, "want: the progress does not decrease")

				done, total = nowDone, nowTotal
			}})
			require.NoError(t, err)
			require.Equal(t, test.instant, making.PointInTime(), "want: a reflinked copy is point-in-time")
			require.NoError(t, making.CopyData(t.Context()))
			require.NoFileExists(t, placeOf(to, snapshot))

			// What is written after the cut is no longer part of it.
			image, err := from.Images.Open(source.ID, os.O_RDWR)
			require.NoError(t, err)
			_, err = image.WriteAt([]byte("later"), 4096)
			require.NoError(t, err)
			require.NoError(t, image.Close())

			allocated, err := making.Commit(t.Context())
			require.NoError(t, err)
			require.NoError(t, making.Abort())
			require.Empty(t, scratchOf(t, to), "want: no scratch file is left")
			require.Equal(t, before, checksum(t, placeOf(to, snapshot)))

			if test.instant {
				require.Zero(t, total, "an instant copy has no progress")
			} else {
				require.Equal(t, total, done, "want: the progress ends at the total")
				require.Less(t, total, int64(2*mebi), "want: the holes are not copied")
			}

			info, err := os.Stat(placeOf(to, snapshot))
			require.NoError(t, err)
			require.EqualValues(t, size, info.Size(), "want: the copy has the size of the source")
			require.Equal(t, os.FileMode(0o600), info.Mode(), "want: the copy is for its owner only")
			require.EqualValues(t, otherUser, info.Sys().(*syscall.Stat_t).Uid, "want: the copy has the owner of the pool")
			require.EqualValues(t, otherUser, info.Sys().(*syscall.Stat_t).Gid, "want: the copy has the group of the pool")
			require.Equal(t, info.Sys().(*syscall.Stat_t).Blocks*512, allocated, "want: Commit returns the allocated bytes")
			require.Less(t, allocated, int64(2*mebi), "holes stay holes")

			if test.to != "" {
				require.Less(t, allocated, int64(512*kibi), "what passes through memory loses its zeros")
			}
		})
	}
}

func TestRestoreCanBeLarger(t *testing.T) {
	for _, kind := range []string{plain, reflink} {
		t.Run(kind, func(t *testing.T) {
			place := newPool(t, kind, roomy)
			source := newImage(t, place, 16*mebi)
			snapshot, restored := snapshotOf(t, source), imageOf(newID(t))

			copied(t, place, place, source, snapshot, pool.CopyOptions{})
			require.NoError(t, place.Remove(t.Context(), source))

			allocated := copied(t, place, place, snapshot, restored, pool.CopyOptions{SizeBytes: 48*mebi + 1})
			require.Less(t, allocated, int64(2*mebi), "want: the larger rest is a hole")

			info, err := os.Stat(placeOf(place, restored))
			require.NoError(t, err)
			require.EqualValues(t, 48*mebi+1, info.Size(), "want: the copy has the larger size")
			require.NoError(t, os.Truncate(placeOf(place, restored), 16*mebi))
			sameContent(t, place, snapshot, place, restored)
		})
	}
}

func TestThickCopyHasItsSpaceAlone(t *testing.T) {
	for _, kind := range []string{plain, reflink, cow} {
		t.Run(kind, func(t *testing.T) {
			const size, larger = 16 * mebi, 24 * mebi

			place := newPool(t, kind, roomy)
			source := newImage(t, place, size)
			before := checksum(t, placeOf(place, source))

			thin := snapshotOf(t, source)
			copied(t, place, place, source, thin, pool.CopyOptions{})
			require.Equal(t, kind != plain, sharesBlocks(t, placeOf(place, thin)), "else this test would see nothing")

			thick := imageOf(newID(t))
			allocated := copied(t, place, place, source, thick, pool.CopyOptions{SizeBytes: larger, Thick: true})
			require.GreaterOrEqual(t, allocated, int64(larger), "want: a thick copy has all of its blocks")
			require.False(t, sharesBlocks(t, placeOf(place, thick)), "want: the copy shares no blocks")

			require.NoError(t, os.Truncate(placeOf(place, thick), size))
			require.Equal(t, before, checksum(t, placeOf(place, thick)))
		})
	}
}

// TestThickCopyBetweenPoolsOfOneFilesystem: copy_file_range shares blocks of
// its own accord.
func TestThickCopyBetweenPoolsOfOneFilesystem(t *testing.T) {
	from := newPool(t, reflink, roomy)
	to := openPool(t, filepath.Join(filepath.Dir(from.Path()), "beside"))
	source, thick := newImage(t, from, 16*mebi), imageOf(newID(t))

	copied(t, to, from, source, thick, pool.CopyOptions{Thick: true})
	require.False(t, sharesBlocks(t, placeOf(to, thick)), "want: the copy shares no blocks")
	sameContent(t, from, source, to, thick)
}

// TestCopyReplacesAnEarlierCopy: it is the retry after a crash between Commit and the note that it
// was done.
func TestCopyReplacesAnEarlierCopy(t *testing.T) {
	for _, kind := range []string{plain, reflink} {
		t.Run(kind, func(t *testing.T) {
			place := newPool(t, kind, roomy)

			for _, sources := range [][]pool.Object{
				{newImage(t, place, mebi), newImage(t, place, 2*mebi)},
				{newDirectory(t, place, 5, kibi), newDirectory(t, place, 3, kibi)},
			} {
				target := snapshotOf(t, sources[0])

				for _, source := range sources {
					copied(t, place, place, source, target, pool.CopyOptions{})
					sameContent(t, place, source, place, target)
					require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
				}
			}
		})
	}
}

// TestCancelledCopyLeavesNothing cancels when some bytes are copied and others
// are not.
func TestCancelledCopyLeavesNothing(t *testing.T) {
	place := newPool(t, plain, roomy)
	large := imageOf(newID(t))
	require.NoError(t, place.Images.Create(large.ID, 64*mebi, false))
	require.NoError(t, os.WriteFile(placeOf(place, large), randomBytes(64*mebi), 0o600))

	for name, source := range map[string]pool.Object{"image": large, "directory": newDirectory(t, place, 40, 512*kibi)} {
		t.Run(name, func(t *testing.T) {
			before := available(t, place)
			target := snapshotOf(t, source)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			var reports []int64

			making, err := place.NewCopy(place, source, target, pool.CopyOptions{Progress: func(done, total int64) {
				reports = append(reports, done)

				if done > 0 {
					require.Less(t, done, total, "want: the copy is cancelled before its end")
					cancel()
				}
			}})
			require.NoError(t, err)
			require.ErrorIs(t, making.CopyData(ctx), context.Canceled)
			require.Len(t, reports, 2, "nothing is copied after the cancel")
			nothingHalfMade(t, place, target)
			require.NoError(t, making.Abort())
			require.GreaterOrEqual(t, available(t, place), before, "want: the space is free again")
		})
	}
}

func TestAbortedCopyLeavesNothing(t *testing.T) {
	place := newPool(t, reflink, roomy)

	for name, source := range map[string]pool.Object{"image": newImage(t, place, mebi), "directory": newDirectory(t, place, 3, kibi)} {
		t.Run(name, func(t *testing.T) {
			before := available(t, place)
			target := snapshotOf(t, source)

			making, err := place.NewCopy(place, source, target, pool.CopyOptions{})
			require.NoError(t, err)
			require.NoError(t, making.CopyData(t.Context()))
			require.NoError(t, making.Abort())
			require.NoError(t, making.Abort())
			nothingHalfMade(t, place, target)
			require.GreaterOrEqual(t, available(t, place), before, "want: the space is free again")
		})
	}
}

// TestTruncatedSourceIsNotCopied truncates the image before the copy is prepared, and after that: zeros
// would stand where data is lost.
func TestTruncatedSourceIsNotCopied(t *testing.T) {
	t.Parallel()

	options := pool.CopyOptions{SourceBytes: 2 * mebi, SizeBytes: 2 * mebi}

	for kind, instant := range map[string]bool{reflink: true, plain: false} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			place := newPool(t, kind, roomy)
			source := newImage(t, place, 2*mebi)
			target := snapshotOf(t, source)

			making, err := place.NewCopy(place, source, target, options)
			require.NoError(t, err)
			require.Equal(t, instant, making.PointInTime(), "want: the copy is point-in-time where blocks are shared")
			require.NoError(t, os.Truncate(placeOf(place, source), mebi))

			require.ErrorIs(t, making.CopyData(t.Context()), pool.ErrTruncated)
			nothingHalfMade(t, place, target)

			_, err = place.NewCopy(place, source, target, options)
			require.ErrorIs(t, err, pool.ErrTruncated)
			nothingHalfMade(t, place, target)
		})
	}
}

func TestFullPoolKeepsNoPartialCopy(t *testing.T) {
	// Each source is more than half of its pool.
	tests := map[string]struct {
		kind    string
		make    func(t *testing.T, place *pool.Pool, bytes int64) pool.Object
		options pool.CopyOptions
	}{
		"extents":          {kind: plain, make: fullImage},
		"thick":            {kind: plain, make: fullImage, options: pool.CopyOptions{Thick: true}},
		"thick, shared":    {kind: reflink, make: fullImage, options: pool.CopyOptions{Thick: true}},
		"thick, rewritten": {kind: cow, make: fullImage, options: pool.CopyOptions{Thick: true}},
		"directory": {kind: plain, make: func(t *testing.T, place *pool.Pool, bytes int64) pool.Object {
			t.Helper()

			return newDirectory(t, place, 64, int(bytes/64))
		}},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			size := map[string]int64{plain: 64 * mebi, reflink: 320 * mebi, cow: 256 * mebi}[test.kind]
			place := newPool(t, test.kind, size)
			source := test.make(t, place, available(t, place)/5*3)
			target := snapshotOf(t, source)
			before := available(t, place)

			making, err := place.NewCopy(place, source, target, test.options)
			require.NoError(t, err)

			if err = making.CopyData(t.Context()); err == nil {
				require.True(t, making.PointInTime(), "a copy of the bytes fails in CopyData")

				_, err = making.Commit(t.Context())
			}

			require.ErrorIs(t, err, pool.ErrNoSpace)
			errtext.Require(t, err, source.ID)
			nothingHalfMade(t, place, target)
			require.Eventually(t, func() bool { return available(t, place) >= before-before/100 }, waitFor, pollEvery, "want: the space is free again")
		})
	}
}

// fullImage makes a volume whose blocks are all written.
func fullImage(t *testing.T, place *pool.Pool, bytes int64) pool.Object {
	t.Helper()

	object := imageOf(newID(t))
	require.NoError(t, place.Images.Create(object.ID, bytes, false))
	require.NoError(t, os.WriteFile(placeOf(place, object), randomBytes(int(bytes)), 0o600))

	return object
}

// TestFailedReflinkIsAnError where the pool can reflink, but not this file: the caller relies on a
// point-in-time copy.
func TestFailedReflinkIsAnError(t *testing.T) {
	place := newPool(t, cow, roomy)
	require.True(t, place.Images.Reflinks(), "want: the pool has reflinks")

	// A file without checksums, on btrfs, shares no blocks with one that has.
	images, err := os.Open(filepath.Join(place.Path(), "images"))
	require.NoError(t, err)

	defer images.Close()

	const noCow = 0x00800000
	require.NoError(t, unix.IoctlSetPointerInt(int(images.Fd()), unix.FS_IOC_SETFLAGS, noCow))

	source := newImage(t, place, mebi)
	target := snapshotOf(t, source)

	making, err := place.NewCopy(place, source, target, pool.CopyOptions{})
	require.NoError(t, err)
	require.True(t, making.PointInTime(), "want: the copy is instant")
	require.ErrorIs(t, making.CopyData(t.Context()), filecopy.ErrCloneUnsupported)
	nothingHalfMade(t, place, target)
}

func TestCopyOfAMissingSourceFails(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())
	there := newImage(t, place, mebi)

	for _, missing := range []pool.Object{imageOf(newID(t)), directoryOf(newID(t)), snapshotOf(t, there), {ID: there.ID, Backing: volume.BackingDirectory}} {
		_, err := place.NewCopy(place, missing, snapshotOf(t, missing), pool.CopyOptions{})
		require.ErrorIs(t, err, pool.ErrMissing)
		errtext.Require(t, err, missing.String())
	}

	hostile := pool.Object{ID: "../images/x", Backing: volume.BackingImage}

	_, err := place.NewCopy(place, hostile, snapshotOf(t, there), pool.CopyOptions{})
	require.ErrorIs(t, err, volume.ErrInvalidID)
	_, err = place.NewCopy(place, there, hostile, pool.CopyOptions{})
	require.ErrorIs(t, err, volume.ErrInvalidID)
	_, err = place.NewCopy(place, there, directoryOf(newID(t)), pool.CopyOptions{})
	require.Error(t, err, "an image is no directory")
	require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
}

// TestSymlinkIsNoVolume plants links to another volume of the same pool.
func TestSymlinkIsNoVolume(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())
	neighbour, directory := newImage(t, place, mebi), newDirectory(t, place, 1, kibi)
	snapshot := snapshotOf(t, neighbour)
	copied(t, place, place, neighbour, snapshot, pool.CopyOptions{})

	for _, there := range []pool.Object{neighbour, directory, snapshot} {
		planted := there
		planted.ID = newID(t)
		require.NoError(t, os.Symlink(filepath.Base(placeOf(place, there)), placeOf(place, planted)))

		_, err := place.NewCopy(place, planted, snapshotOf(t, there), pool.CopyOptions{})
		require.Error(t, err, "NewCopy of a symlink to a %s", there.Backing)
		require.NotErrorIs(t, err, pool.ErrMissing, "it is there, and wrong")

		_, err = place.Open(planted)
		require.Error(t, err, "an open of a symlink to a %s", there.Backing)
	}
}

func TestSnapshotsAreListedUntilTheirRemoval(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())
	image, directory := newImage(t, place, mebi), newDirectory(t, place, 3, kibi)

	var made []pool.Object

	for _, source := range []pool.Object{image, directory} {
		snapshot := snapshotOf(t, source)
		copied(t, place, place, source, snapshot, pool.CopyOptions{})

		made = append(made, snapshot)
	}

	list := func() (found []pool.Object) {
		require.NoError(t, place.List(t.Context(), func(object pool.Object) error {
			if object.Snapshot {
				found = append(found, object)
			} else {
				require.False(t, slices.ContainsFunc(made, func(each pool.Object) bool { return each.ID == object.ID }), "a snapshot is no volume")
			}

			return nil
		}))

		return found
	}

	require.ElementsMatch(t, made, list())

	file, err := place.Open(made[0])
	require.NoError(t, err)
	_, err = file.WriteString("x")
	require.ErrorIs(t, err, unix.EBADF, "a snapshot is not written")
	require.NoError(t, file.Close())

	for _, entry := range made {
		require.NoError(t, place.Remove(t.Context(), entry))
		require.NoError(t, place.Remove(t.Context(), entry), "it is gone already")
	}

	require.Empty(t, list(), "want: no snapshot is listed")

	_, err = place.Open(made[0])
	require.ErrorIs(t, err, pool.ErrMissing)
}

func TestReadOnlyPoolRefusesChanges(t *testing.T) {
	place := newPool(t, reflink, roomy)
	source := newImage(t, place, mebi)
	snapshot := snapshotOf(t, source)
	copied(t, place, place, source, snapshot, pool.CopyOptions{})

	where := filepath.Dir(place.Path())
	require.NoError(t, unix.Mount("", where, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	again := openPool(t, place.Path())
	require.False(t, again.Images.Reflinks(), "want: the pool has no reflinks")

	file, err := again.Open(snapshot)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}
