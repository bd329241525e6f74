package staged_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestMountOptions(t *testing.T) {
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

func TestPoolsOf(t *testing.T) {
	t.Parallel()

	pools, err := pool.OpenSet(map[string]string{"default": t.TempDir()})
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
		"the image":              func() error { return p.CheckImage(image) },
	} {
		rpccode.Require(t, get(), codes.FailedPrecondition, what+" of a volume in a pool that the node does not have")
	}

	require.NoError(t, pools.Fail("default", os.ErrPermission))
	_, err = p.Of(in("default", false))
	require.ErrorIs(t, err, pool.ErrUnavailable)
	rpccode.Require(t, err, codes.Unavailable, "a pool that is not served")
}
