package pool_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
)

type ledger struct {
	provisioned int64
	objects     []pool.Object
	place       *pool.Pool
	err         error
	measured    int
}

func (r *ledger) ProvisionedBytes(string) int64 { return r.provisioned }

func (r *ledger) AddAllocated(ctx context.Context, _ string, sum *pool.Allocation) error {
	r.measured++

	for _, object := range r.objects {
		if err := sum.Add(ctx, r.place, object); err != nil {
			return err
		}
	}

	return r.err
}

// TestPoolIsMeasuredOnlyIfDecisive: most requests do not measure.
func TestPoolIsMeasuredOnlyIfDecisive(t *testing.T) {
	t.Parallel()

	place := newPool(t, plain, 256*mebi)
	full := imageOf(newID(t))
	require.NoError(t, place.Images.Create(full.ID, 64*mebi, true))

	capacity, err := place.Capacity()
	require.NoError(t, err)

	for name, test := range map[string]struct {
		overcommit  float64
		provisioned int64
		err         error

		bytes int64
		taken bool

		measured int
		refused  bool
	}{
		"it fits, whatever is allocated":                 {overcommit: 1, provisioned: 64 * mebi, bytes: capacity.Available - 64*mebi},
		"it fits, as the provisioned image is allocated": {overcommit: 1, provisioned: 64 * mebi, bytes: capacity.Available, measured: 1},
		"it does not fit":                                {overcommit: 1, provisioned: 64 * mebi, bytes: capacity.Available + 1, measured: 1, refused: true},
		"more is provisioned":                            {overcommit: 1, provisioned: 65 * mebi, bytes: capacity.Available, measured: 1, refused: true},
		"more is allocated than provisioned":             {overcommit: 1, provisioned: mebi, bytes: capacity.Available + mebi, measured: 1, refused: true},
		"the request has allocated the difference":       {overcommit: 1, provisioned: mebi, bytes: 63 * mebi, taken: true},
		"ratio 2":           {overcommit: 2, provisioned: 64 * mebi, bytes: 2*capacity.Available - 64*mebi},
		"ratio 2, measured": {overcommit: 2, provisioned: 64 * mebi, bytes: 2 * capacity.Available, measured: 1},
		"ratio 2, more than twice what is available": {overcommit: 2, provisioned: 0, bytes: 2*capacity.Available + 1, measured: 1, refused: true},
		"ratio 0.5":             {overcommit: 0.5, provisioned: mebi, bytes: capacity.Available/2 - mebi},
		"more than there is":    {overcommit: math.MaxFloat64, provisioned: 1, bytes: math.MaxInt64 - 1},
		"the measurement fails": {overcommit: 1, provisioned: 64 * mebi, bytes: capacity.Available, measured: 1, err: errors.New("no measure")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			books := &ledger{provisioned: test.provisioned, objects: []pool.Object{full}, place: place, err: test.err}
			admission := &pool.Admission{Overcommit: test.overcommit}
			admission.Register(books)

			reserved := 0
			err := admission.Admit(t.Context(), func(check pool.Check) error {
				if err := check(place, test.bytes, test.taken); err != nil {
					return err
				}

				reserved++

				return nil
			})

			switch {
			case test.err != nil:
				require.ErrorIs(t, err, test.err, "a failed measurement neither admits nor refuses")
				require.NotErrorIs(t, err, pool.ErrOvercommitted)
				require.Zero(t, reserved, "want: nothing is reserved")
			case test.refused:
				require.ErrorIs(t, err, pool.ErrOvercommitted)
				require.Zero(t, reserved, "want: nothing is reserved")
			default:
				require.NoError(t, err)
				require.Equal(t, 1, reserved, "want: the space is reserved once")
			}

			require.Equal(t, test.measured, books.measured, "measurements")
		})
	}
}

// TestNothingIsReadWhileRecording, which holds the lock of the state: a pool that hangs must not block
// the others. Here the pool is away meanwhile.
func TestNothingIsReadWhileRecording(t *testing.T) {
	t.Parallel()

	directory := filepath.Join(t.TempDir(), "pool")
	p := openAt(t, directory)
	admission := &pool.Admission{Overcommit: 1}
	admission.Register(&ledger{})

	record := func(bytes int64) error {
		return admission.Admit(t.Context(), func(check pool.Check) error {
			require.NoError(t, os.Rename(directory, directory+"-away"))

			err := check(p, bytes, false)

			require.NoError(t, os.Rename(directory+"-away", directory))

			return err
		})
	}

	require.NoError(t, record(1), "want: the capacity is read between the attempts to record")
	require.ErrorIs(t, record(math.MaxInt64), pool.ErrOvercommitted, "want: the pool is measured between the attempts to record")
}

// TestOtherErrorsAreNotRetried after a measurement.
func TestOtherErrorsAreNotRetried(t *testing.T) {
	t.Parallel()

	admission, tries, other := &pool.Admission{Overcommit: 1}, 0, errors.New("another")

	err := admission.Admit(t.Context(), func(pool.Check) error {
		tries++

		return other
	})
	require.ErrorIs(t, err, other)
	require.Equal(t, 1, tries, "want: the error ends the tries")
}

// TestAllocationCountsSharedBlocksOnce, and only blocks of its objects.
func TestAllocationCountsSharedBlocksOnce(t *testing.T) {
	t.Parallel()

	const size = 16 * mebi

	for _, kind := range []string{plain, reflink, cow} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			place := newPool(t, kind, 512*mebi)
			image, missing, tree := imageOf(newID(t)), imageOf(newID(t)), directoryOf(newID(t))
			require.NoError(t, place.Images.Create(image.ID, size, false))
			require.NoError(t, place.Directories.Create(tree.ID, 1<<30, false))

			random := randomBytes(size)
			require.NoError(t, os.WriteFile(placeOf(place, image), random, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(placeOf(place, tree), "file"), random, 0o600))
			require.NoError(t, os.Link(filepath.Join(placeOf(place, tree), "file"), filepath.Join(placeOf(place, tree), "again")))

			imageCopy, treeCopy := snapshotOf(t, image), snapshotOf(t, tree)
			copied(t, place, place, image, imageCopy, pool.CopyOptions{SizeBytes: size})
			copied(t, place, place, tree, treeCopy, pool.CopyOptions{})

			// btrfs reports extents only after they are written.
			root, err := os.Open(filepath.Dir(placeOf(place, image)))
			require.NoError(t, err)
			require.NoError(t, unix.Syncfs(int(root.Fd())))
			require.NoError(t, root.Close())

			each := map[string]struct {
				objects []pool.Object
				bytes   int64
			}{
				"nothing":            {},
				"what is not there":  {[]pool.Object{missing}, 0},
				"an image":           {[]pool.Object{image}, size},
				"one image twice":    {[]pool.Object{image, imageCopy}, map[bool]int64{true: 2 * size, false: size}[kind == plain]},
				"a tree":             {[]pool.Object{tree}, size},
				"an image of others": {[]pool.Object{imageCopy}, size},
			}

			for name, test := range each {
				var sum pool.Allocation
				for _, object := range test.objects {
					require.NoError(t, sum.Add(t.Context(), place, object))
				}

				require.InDelta(t, test.bytes, sum.Bytes(), 64*kibi, name)
			}
		})
	}
}
