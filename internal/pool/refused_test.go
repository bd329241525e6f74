package pool_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// byID are the operations that an object's id is given to, and the error for an object that is missing.
var byID = map[string]struct {
	missing error
	run     func(ctx context.Context, p *pool.Pool, id string) error
}{
	"grow an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		return p.Images.Grow(id, pool.Growth{To: mebi})
	}},
	"sync an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error { return p.Images.Sync(id) }},
	"open an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.Images.Open(id, os.O_RDONLY)

		return err
	}},
	"open a snapshot": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.Open(pool.Object{ID: id, Backing: volume.BackingImage, Snapshot: true})

		return err
	}},
	"fill an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		return refill(p, id, true, writeOnce)
	}},
	"limit a directory":   {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error { return p.Directories.Limit(id, mebi) }},
	"confine a directory": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error { return p.Directories.Confine(id) }},
	"sync a directory":    {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error { return p.Directories.Sync(id) }},
	"quota of a directory": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, _, err := p.Directories.Quota(id)

		return err
	}},
	"usage of a directory": {pool.ErrMissing, func(ctx context.Context, p *pool.Pool, id string) error {
		_, err := p.Directories.Usage(ctx, id)

		return err
	}},
	"usage of an image": {pool.ErrMissing, func(ctx context.Context, p *pool.Pool, id string) error {
		_, err := p.Usage(ctx, imageOf(id))

		return err
	}},
	"space of an image": {pool.ErrMissing, func(ctx context.Context, p *pool.Pool, id string) error {
		_, err := p.Images.AllocatedBytes(ctx, id)

		return err
	}},
	"space of a directory": {pool.ErrMissing, func(ctx context.Context, p *pool.Pool, id string) error {
		_, err := p.Directories.AllocatedBytes(ctx, id)

		return err
	}},
	"stat an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.Stat(id, volume.BackingImage)

		return err
	}},
	"size of an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.Size(imageOf(id))

		return err
	}},
	"check the growth of an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		return p.Images.CheckGrowth(imageOf(id), mebi)
	}},
	"copy an image": {pool.ErrMissing, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.NewCopy(p, imageOf(id), onceTarget(volume.BackingImage, true), pool.CopyOptions{})

		return err
	}},
	"group copy": {pool.ErrNoGroupCopy, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.NewGroupCopy(id, nil)

		return err
	}},
	"detached image": {nil, func(ctx context.Context, p *pool.Pool, id string) error { return p.Images.CheckDetached(ctx, id) }},
	"attributes": {nil, func(_ context.Context, p *pool.Pool, id string) error {
		_, err := p.Mutable(id)

		return err
	}},
	"sum of space": {nil, func(ctx context.Context, p *pool.Pool, id string) error {
		var sum pool.Allocation

		return sum.Add(ctx, p, imageOf(id))
	}},
	"remove a volume":   {nil, func(ctx context.Context, p *pool.Pool, id string) error { return p.Remove(ctx, directoryOf(id)) }},
	"discard a volume":  {nil, func(ctx context.Context, p *pool.Pool, id string) error { return p.Discard(ctx, imageOf(id)) }},
	"stale scratch":     {nil, func(_ context.Context, p *pool.Pool, id string) error { return removed(p.RemoveStaleScratchOf(id)) }},
	"empty image":       {nil, emptyOrphan(volume.BackingImage)},
	"empty directory":   {nil, emptyOrphan(volume.BackingDirectory)},
	"make an image":     {nil, func(_ context.Context, p *pool.Pool, id string) error { return p.Images.Create(id, mebi, false) }},
	"make a directory":  {nil, func(_ context.Context, p *pool.Pool, id string) error { return p.Directories.Create(id, mebi, false) }},
	"change attributes": {nil, func(_ context.Context, p *pool.Pool, id string) error { return p.SetMutable(id, onceMutable) }},
	"copy to an image": {nil, func(_ context.Context, p *pool.Pool, id string) error {
		making, err := p.NewCopy(p, imageOf(onceID), imageOf(id), pool.CopyOptions{})
		if err != nil {
			return err
		}

		return making.Abort()
	}},
}

func removed(done bool, err error) error {
	if err == nil && !done {
		return pool.ErrInProgress
	}

	return err
}

func emptyOrphan(backing volume.Backing) func(ctx context.Context, p *pool.Pool, id string) error {
	return func(ctx context.Context, p *pool.Pool, id string) error {
		return removed(p.RemoveEmptyOrphan(ctx, pool.Object{ID: id, Backing: backing}))
	}
}

// paths returns all paths beneath a directory.
func paths(t *testing.T, directory string) []string {
	t.Helper()

	var found []string

	require.NoError(t, filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
		found = append(found, path)

		return err
	}))

	return found
}

// TestIDsAreValidated has ids that are none and ids of objects that are missing in every operation: the
// first are refused, and nothing is made or removed for either, but by what makes an object.
func TestIDsAreValidated(t *testing.T) {
	t.Parallel()

	for name, each := range byID {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := openPool(t, t.TempDir())
			onceImage(t, p)
			onceDirectory(t, p)

			before := paths(t, p.Path())

			for _, id := range []string{"", ".", "..", "../images/" + onceID, onceID + "/sub", "no id"} {
				require.ErrorIs(t, each.run(t.Context(), p, id), volume.ErrInvalidID, "the id %q", id)
				require.Equal(t, before, paths(t, p.Path()), "the id %q", id)
			}

			err := each.run(t.Context(), p, newID(t))
			if each.missing == nil {
				require.NoError(t, err, "an object that is missing")

				return
			}

			require.ErrorIs(t, err, each.missing, "an object that is missing")
			require.Equal(t, before, paths(t, p.Path()), "an object that is missing")
		})
	}
}

// TestAnImageNeverShrinks, and one that was truncated stays as it is.
func TestAnImageNeverShrinks(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		growth pool.Growth
		size   int64
		err    error
	}{
		"grown":     {growth: pool.Growth{From: onceBytes, To: onceBytes + 1}, size: onceBytes + 1},
		"same size": {growth: pool.Growth{From: onceBytes, To: onceBytes}, size: onceBytes},
		"smaller":   {growth: pool.Growth{From: mebi, To: mebi}, size: onceBytes},
		"thick":     {growth: pool.Growth{From: mebi, To: mebi, Thick: true}, size: onceBytes},
		"longer":    {growth: pool.Growth{From: onceBytes - 1, To: 2 * onceBytes}, size: 2 * onceBytes},
		"truncated": {growth: pool.Growth{From: onceBytes + 1, To: 2 * onceBytes}, size: onceBytes, err: pool.ErrTruncated},
		"truncated, thick": {
			growth: pool.Growth{From: onceBytes + 1, To: 2 * onceBytes, Thick: true}, size: onceBytes, err: pool.ErrTruncated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := openPool(t, t.TempDir())
			require.NoError(t, p.Images.Create(onceID, onceBytes, false))
			require.Zero(t, p.Images.LastResized(onceID), "want: an image that is missing was never resized")
			require.ErrorIs(t, p.Images.Grow(onceID, test.growth), test.err)

			info, err := p.Stat(onceID, volume.BackingImage)
			require.NoError(t, err)
			require.Equal(t, test.size, info.Size())
			require.Equal(t, test.err != nil, p.Images.LastResized(onceID).IsZero(), "nothing was resized")

			require.NoError(t, p.Remove(t.Context(), imageOf(onceID)))
			require.Zero(t, p.Images.LastResized(onceID), "the volume was removed")
		})
	}
}
