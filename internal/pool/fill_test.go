package pool_test

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
)

// refill replaces the image, whatever it holds, by what is written.
func refill(place *pool.Pool, id string, thick bool, write func(path string) error) error {
	filling, err := place.Images.BeginFill(id, thick)
	if err != nil {
		return err
	}

	path, err := filling.Reserve()
	if err == nil {
		err = write(path)
	}

	if err == nil {
		err = filling.Commit()
	}

	return filling.Close(err)
}

func imageOfSize(t *testing.T, place *pool.Pool, size int64, thick bool) string {
	t.Helper()

	id := volume.NewID()
	require.NoError(t, place.Images.Create(id, size, thick))

	return id
}

// TestFillImageLeavesAnAttachedImage: its lock is what an attachment holds.
func TestFillImageLeavesAnAttachedImage(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		place := openAt(t, t.TempDir())
		id := imageOfSize(t, place, mebi, false)

		attached, err := place.Images.Open(id, os.O_RDWR)
		require.NoError(t, err)
		await.Flock(t, attached, unix.LOCK_EX)

		err = refill(place, id, false, func(string) error { return errors.New("an image that is attached was filled") })
		require.ErrorIs(t, err, pool.ErrInUse)

		current, err := place.Images.IsCurrent(id, attached)
		require.NoError(t, err)
		require.True(t, current, "the image was replaced")
		release(t, attached)
	})
}

// TestFillImageHoldsTheLock from its begin, so that nothing can attach the image, and lets go of it afterwards.
func TestFillImageHoldsTheLock(t *testing.T) {
	t.Parallel()

	place := openAt(t, t.TempDir())
	id := imageOfSize(t, place, mebi, false)

	old, err := place.Images.Open(id, os.O_RDWR)
	require.NoError(t, err)

	defer old.Close()

	locked := func(when string) {
		require.ErrorIs(t, unix.Flock(int(old.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK, when)
	}

	filling, err := place.Images.BeginFill(id, false)
	require.NoError(t, err)
	locked("while it is checked")

	_, err = filling.Reserve()
	require.NoError(t, err)
	locked("while it is filled")
	require.NoError(t, filling.Close(filling.Commit()))
	require.NoError(t, unix.Flock(int(old.Fd()), unix.LOCK_EX|unix.LOCK_NB), "want: the image that was replaced is not locked")

	// What was opened before is not the volume's image any more.
	current, err := place.Images.IsCurrent(id, old)
	require.NoError(t, err)
	require.False(t, current, "want: the image is not current")
}

// TestAnImageThatGrowsWhileItIsFilled is as large then, and is known to have been resized only if it was.
func TestAnImageThatGrowsWhileItIsFilled(t *testing.T) {
	t.Parallel()

	for _, size := range []int64{mebi, 2 * mebi} {
		place := openAt(t, t.TempDir())
		id := imageOfSize(t, place, mebi, false)
		image := place.ObjectPath(imageOf(id))

		require.NoError(t, refill(place, id, false, func(path string) error {
			return errors.Join(os.Truncate(image, size), os.WriteFile(path, []byte("filled"), 0o600), os.Truncate(path, mebi))
		}))

		info, err := os.Stat(image)
		require.NoError(t, err)
		require.Equal(t, size, info.Size(), "want: the image has the size that it was grown to")
		require.Equal(t, size == mebi, place.Images.LastResized(id).IsZero(), "want: whether the image was resized")

		thin, refused := imageOfSize(t, place, mebi, false), errors.New("mkfs fails")
		require.ErrorIs(t, refill(place, thin, false, func(string) error { return refused }), refused)
		require.Zero(t, allocatedBytes(t, place.ObjectPath(imageOf(thin))), "want: a failed fill allocates no blocks")
	}
}

// TestAFillReleasesTheLock also where a child that was being forked has a copy of the descriptor.
func TestAFillReleasesTheLock(t *testing.T) {
	t.Parallel()

	place := openAt(t, t.TempDir())
	id := imageOfSize(t, place, mebi, false)

	filling, err := place.Images.BeginFill(id, false)
	require.NoError(t, err)

	copied, err := unix.FcntlInt(filling.Old().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(copied)) })
	require.NoError(t, filling.Close(nil))

	free, err := place.Images.Open(id, os.O_RDWR)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(free.Fd()), unix.LOCK_EX|unix.LOCK_NB), "want: the image is free to be attached")
	require.NoError(t, free.Close())
}

// TestAFillThatIsNotCommittedLeavesTheImage, and no scratch of it.
func TestAFillThatIsNotCommittedLeavesTheImage(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	place := openAt(t, directory)
	id := imageOfSize(t, place, mebi, false)

	filling, err := place.Images.BeginFill(id, false)
	require.NoError(t, err)

	current, err := place.Images.IsCurrent(id, filling.Old())
	require.NoError(t, err)
	require.True(t, current, "want: the image that may be replaced is the volume's")
	require.NoError(t, filling.Close(nil))

	left, err := os.ReadDir(directory + "/scratch")
	require.NoError(t, err)
	require.Empty(t, left, "want: the refused fill leaves no scratch file")
}

// TestFillImageLeavesADeletedVolumeDeleted: DeleteVolume takes no lock.
func TestFillImageLeavesADeletedVolumeDeleted(t *testing.T) {
	t.Parallel()

	place := openAt(t, t.TempDir())
	id := imageOfSize(t, place, mebi, false)

	err := refill(place, id, false, func(string) error { return place.Remove(t.Context(), imageOf(id)) })
	require.ErrorIs(t, err, pool.ErrMissing)
	require.NoFileExists(t, place.ObjectPath(imageOf(id)))
}

// TestThickImagesTakeTheirSpaceOnce has pools whose free space is less than the
// image: what is allocated already must not be asked for again. XFS wants all of
// a range free that fallocate is called for.
func TestThickImagesTakeTheirSpaceOnce(t *testing.T) {
	t.Parallel()

	const poolSize, size = 512 * mebi, 200 * mebi

	for _, kind := range []string{plain, reflink, cow} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			place := newPool(t, kind, poolSize)
			id := imageOfSize(t, place, size, true)
			leaveFree(t, place, size/2)

			allocated := func() int64 { return allocatedBytes(t, place.ObjectPath(imageOf(id))) }
			require.GreaterOrEqual(t, allocated(), int64(size), "want: a thick image has all of its blocks")

			require.NoError(t, place.Images.Create(id, size, true), "again")
			require.NoError(t, place.Images.Grow(id, pool.Growth{To: size, Thick: true}), "to the size that it has")

			// A hole is filled again, and only that takes space.
			image, err := place.Images.Open(id, os.O_RDWR)
			require.NoError(t, err)

			defer image.Close()

			const hole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

			require.NoError(t, unix.Fallocate(int(image.Fd()), hole, size/4, 10*mebi))
			require.Less(t, allocated(), int64(size), "want: the punched hole is not allocated")
			require.NoError(t, place.Images.Create(id, size, true), "with a hole")
			require.GreaterOrEqual(t, allocated(), int64(size), "want: a thick image has the hole filled")

			// What there is no space for leaves no trace.
			require.ErrorIs(t, place.Images.Grow(id, pool.Growth{To: 2 * size, Thick: true}), pool.ErrNoSpace)

			info, err := image.Stat()
			require.NoError(t, err)
			require.EqualValues(t, size, info.Size(), "want: the image keeps its size")

			require.NoError(t, refill(place, id, true, func(string) error { return nil }))
			require.GreaterOrEqual(t, allocated(), int64(size), "want: the filled image has all of its blocks")

			// What is removed makes space at once, which btrfs counts only after a commit.
			require.NoError(t, image.Close())
			require.NoError(t, place.Remove(t.Context(), imageOf(id)))
			imageOfSize(t, place, size, true)
		})
	}
}

// TestAFailedFillKeepsTheReservation that the old image has lent to the new one.
func TestAFailedFillKeepsTheReservation(t *testing.T) {
	t.Parallel()

	const poolSize, size = 512 * mebi, 200 * mebi

	place := newPool(t, reflink, poolSize)
	id := imageOfSize(t, place, size, true)
	leaveFree(t, place, size/2)

	refused := errors.New("mkfs fails")
	require.ErrorIs(t, refill(place, id, true, func(string) error { return refused }), refused)
	require.GreaterOrEqual(t, allocatedBytes(t, place.ObjectPath(imageOf(id))), int64(size), "want: the failed fill keeps the reserved blocks")
}

// leaveFree fills the pool's filesystem until about that many bytes are free.
func leaveFree(t *testing.T, place *pool.Pool, bytes int64) {
	t.Helper()

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(place.Path(), &stat))

	filler, err := os.Create(place.Path() + "/filler")
	require.NoError(t, err)

	defer filler.Close()

	require.NoError(t, unix.Fallocate(int(filler.Fd()), 0, 0, int64(stat.Bavail)*stat.Bsize-bytes))
}

func allocatedBytes(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Stat_t

	require.NoError(t, unix.Stat(path, &stat))

	return stat.Blocks * 512
}
