package staged_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestCapabilitiesBecomeMountOptions(t *testing.T) {
	t.Parallel()

	plain, err := mount.ParseFlags(nil)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		capability volume.Capability
		readOnly   bool
		want       mount.Options
	}{
		"mounted":             {volume.Capability{}, false, plain.WithoutDevices()},
		"mounted read-only":   {volume.Capability{}, true, plain.WithoutDevices().WithReadOnly()},
		"raw block":           {volume.Capability{Block: true}, false, plain},
		"raw block read-only": {volume.Capability{Block: true}, true, plain.WithReadOnly()},
	} {
		require.Equal(t, test.want, staged.MountOptions(test.capability, test.readOnly), name)
	}
}

func TestInlineVolumesAreInThePoolOfTheirOwn(t *testing.T) {
	t.Parallel()

	pools, err := poolset.Open(map[string]string{"default": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	p := staged.Pools{Volumes: pools, Ephemeral: pools.Ephemeral()}
	in := func(name string, ephemeral bool) *staged.Volume {
		return &staged.Volume{VolumeID: "a", Parameters: volume.Parameters{Pool: name}, Ephemeral: ephemeral}
	}

	of, err := p.Of(in("default", false))
	require.NoError(t, err)
	inline, err := p.Of(in("default", true))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(of.Path(), "ephemeral"), inline.Path(), "inline volumes are in the pool's directory for them")

	image := in("other", false)
	image.Parameters.Backing = volume.BackingImage

	for what, get := range map[string]func() error{
		"the pool":               func() error { _, err := p.Of(image); return err },
		"the mutable parameters": func() error { _, err := p.MutableParameters(image); return err },
		"the image":              func() error { return p.CheckStored(image) },
	} {
		rpccode.Require(t, get(), codes.FailedPrecondition, what+" of a volume in a pool that the node does not have")
	}

	for _, none := range []*staged.Volume{in("other", false), in("other", true)} {
		none.Parameters.Backing = map[bool]volume.Backing{true: volume.BackingImage, false: volume.BackingDirectory}[none.Ephemeral]
		mutable, err := p.MutableParameters(none)
		require.NoError(t, err, "want: no pool is asked for what only images of the controller have")
		require.Empty(t, mutable, "want: it has no mutable parameters")
	}

	stored := in("default", false)
	stored.VolumeID, stored.Parameters.Backing = volumeID, volume.BackingImage
	rpccode.Require(t, p.CheckStored(stored), codes.NotFound, "an image that is missing")
	require.NoError(t, of.Images.Create(volumeID, 1, false))
	require.NoError(t, p.CheckStored(stored))
	require.NoError(t, of.SetMutable(volumeID, volume.Mutable{volume.KeyIOScheduler: "none"}))

	mutable, err := p.MutableParameters(stored)
	require.NoError(t, err)
	require.Equal(t, volume.Mutable{volume.KeyIOScheduler: "none"}, mutable)

	require.NoError(t, pools.Fail("default", os.ErrPermission))
	_, err = p.Of(in("default", false))
	require.ErrorIs(t, err, pool.ErrUnavailable)
	rpccode.Require(t, err, codes.Unavailable, "a pool that is not served")
}

func TestOnlyTheMonitorKnowsAnUnreachablePool(t *testing.T) {
	t.Parallel()

	monitor := health.New(health.Config{Name: "storage", Log: slog.New(slog.DiscardHandler)})
	for name, reason := range map[string]health.Reason{"full": health.PoolNearlyFull, "gone": health.PoolUnreachable} {
		monitor.Set(health.PoolSubject(name), health.Observation{Entries: []health.Entry{health.NewEntry(reason, name)}}, time.Now())
	}

	p := staged.Pools{Storage: monitor}
	require.NoError(t, p.CheckReachable("full"))
	require.NoError(t, p.CheckReachable("unknown"))
	require.ErrorIs(t, p.CheckReachable("gone"), pool.ErrUnreachable)
	require.NoError(t, staged.Pools{}.CheckReachable("gone"), "want: without a monitor all are reachable")
}
