package ephemeral

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// stored returns volumes with records, whose pool "fast" is not served; what is mounted would panic.
func stored(t *testing.T) (*Volumes, *pool.Pool) {
	t.Helper()

	v := volumes(t)
	opened, err := pool.Open("default", t.TempDir(), pool.Options{})
	require.NoError(t, err)
	v.config.Pools.Volumes.Serve(opened)
	t.Cleanup(func() { require.NoError(t, v.config.Pools.Volumes.Close()) })

	store := state.New(t.TempDir(), state.Options{Log: slog.New(slog.DiscardHandler)})
	v.config.Records, v.config.Pools.Ephemeral = staged.NewInlineRecords(store), v.config.Pools.Volumes.Ephemeral()
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	ephemeral, err := opened.Ephemeral()
	require.NoError(t, err)

	return v, ephemeral
}

// directory returns a record of a volume in a directory of a pool.
func directory(poolName string) *staged.Inline {
	r := example()
	r.Parameters.Pool, r.Parameters.Backing = poolName, volume.BackingDirectory

	return r
}

// TestAVolumeThatIsGoneNeedsNothing: another call has removed it.
func TestAVolumeThatIsGoneNeedsNothing(t *testing.T) {
	t.Parallel()

	v, _ := stored(t)
	require.NoError(t, v.recover(t.Context(), "csi-1", "/target"))
	require.NoError(t, v.Unpublish(t.Context(), "csi-1", "/target"))
}

// TestRemoveRefuses what may be another's, or is not known, before it unmounts anything.
func TestRemoveRefuses(t *testing.T) {
	t.Parallel()

	v, ephemeral := stored(t)
	path := ephemeral.ObjectPath(directory("default").Object())

	err := v.remove(t.Context(), directory("other"))
	errtext.Require(t, err, `in pool "other", which this node does not have`)
	rpccode.Require(t, err, codes.FailedPrecondition)

	require.NoError(t, os.Symlink("/proc", path))

	err = v.remove(t.Context(), directory("default"))
	errtext.Require(t, err, "is mounted at /proc, in the volume's directory")
	rpccode.Require(t, err, codes.FailedPrecondition)

	image := directory("default").Object()
	image.Backing = volume.BackingImage
	require.NoError(t, checkMounts(ephemeral, image), "want: nothing is mounted in an image")

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(path, path))
	errtext.Require(t, v.remove(t.Context(), directory("default")), "look for mounts below")
}

// TestAllocationIsOfOnePool: that of another one is not asked for.
func TestAllocationIsOfOnePool(t *testing.T) {
	t.Parallel()

	v, ephemeral := stored(t)
	here, elsewhere := directory("default"), directory("fast")
	elsewhere.VolumeID, elsewhere.ContentID = "csi-2", "01890000-0000-7000-8000-000000000002"

	for _, each := range []*staged.Inline{here, elsewhere} {
		require.NoError(t, v.config.Records.Put(t.Context(), each))
	}

	require.NoError(t, ephemeral.Directories.Create(contentID, 0, false))
	require.NoError(t, os.WriteFile(ephemeral.ObjectPath(here.Object())+"/data", make([]byte, mebibyte), 0o600))

	var one pool.Allocation

	require.NoError(t, v.AddAllocated(t.Context(), "default", &one))
	require.NotEqual(t, pool.Allocation{}, one, "want: the file of the volume is counted")
	require.ErrorIs(t, v.AddAllocated(t.Context(), "fast", &one), pool.ErrUnavailable)

	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, v.AddAllocated(ended, "default", &one), context.Canceled)
}
