package pools_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func createBlock(t *testing.T, d *harness.Driver, name string, bytes int64, provisioning string) (string, error) {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: harness.RequiredBytes(bytes), Parameters: map[string]string{"provisioning": provisioning},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})

	return made.GetVolume().GetVolumeId(), err
}

func TestPoolIsProvisionedOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := harness.SmallPool(t, 64*harness.MiB)
			require.InDelta(t, 64*harness.MiB, harness.AvailableCapacity(t, d), harness.IdentityBytes, "want: the empty pool is available")

			first, err := createBlock(t, d, "first", 40*harness.MiB, provisioning)
			require.NoError(t, err)
			require.InDelta(t, 24*harness.MiB, harness.AvailableCapacity(t, d), harness.IdentityBytes, "want: the volume takes its size")

			before := harness.Everything(t, d)
			_, err = createBlock(t, d, "second", 24*harness.MiB+2*harness.IdentityBytes, provisioning)
			harness.RequireCode(t, err, codes.ResourceExhausted, "default")

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: first, CapacityRange: harness.RequiredBytes(65 * harness.MiB),
			})
			harness.RequireCode(t, err, codes.ResourceExhausted, "default")
			require.Equal(t, before, harness.Everything(t, d))

			d.Restart(t)
			harness.EraseName(t, d)
			require.InDelta(t, 24*harness.MiB, harness.AvailableCapacity(t, d), harness.IdentityBytes, "want: the volume takes its size after a restart")

			// To the last page.
			_, err = createBlock(t, d, "third", 24*harness.MiB, provisioning)
			require.NoError(t, err)
			require.LessOrEqual(t, harness.AvailableCapacity(t, d), int64(harness.IdentityBytes), "want: the pool is provisioned to the last page")

			harness.DeleteVolume(t, d, first)
			require.InDelta(t, 40*harness.MiB, harness.AvailableCapacity(t, d), harness.IdentityBytes, "want: the deleted volume's size is available")
		})
	}
}

func TestThickExpansionUsesTheWholePool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.SmallPool(t, 64*harness.MiB)
	id, err := createBlock(t, d, "pvc", 4*harness.MiB, "thick")
	require.NoError(t, err)

	answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: harness.RequiredBytes(60 * harness.MiB),
	})
	require.NoError(t, err)
	require.EqualValues(t, 60*harness.MiB, answer.GetCapacityBytes(), "want: the volume has the larger size")
	require.EqualValues(t, 60*harness.MiB, harness.AllocatedBytes(t, harness.ImageOf(d, id)), "want: the thick image has all of its blocks")
	require.EqualValues(t, 4*harness.MiB, harness.AvailableCapacity(t, d), "want: the rest of the pool is available")
}

func TestTheOvercommitRatioLimitsAPool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.SmallPool(t, 64*harness.MiB, func(c *driver.Config) { c.Overcommit = 2 })
	require.EqualValues(t, 128*harness.MiB, harness.AvailableCapacity(t, d), "want: the overcommit ratio doubles what is available")

	_, err := createBlock(t, d, "thin", 64*harness.MiB, "thin")
	require.NoError(t, err)
	_, err = createBlock(t, d, "thick", 60*harness.MiB, "thick")
	require.NoError(t, err)

	// Provisioned as often as is allowed, and yet the space is not there.
	_, err = createBlock(t, d, "no", 8*harness.MiB, "thin")
	harness.RequireCode(t, err, codes.ResourceExhausted)

	_, err = createBlock(t, d, "full", 4*harness.MiB+4096, "thick")
	harness.RequireCode(t, err, codes.ResourceExhausted)
	require.Len(t, harness.ListAll(t, d), 2, "want: the refused volume is not listed")

	images, err := os.ReadDir(filepath.Join(d.Pool(), "images"))
	require.NoError(t, err)
	require.Len(t, images, 2, "want: the refused volume leaves no image")
}

func TestConcurrentCallsProvisionThePoolOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := harness.SmallPool(t, 64*harness.MiB)
			errs := make([]error, 24)

			var group sync.WaitGroup
			for i := range errs {
				group.Go(func() {
					_, errs[i] = createBlock(t, d, strconv.Itoa(i), 10*harness.MiB, provisioning)
				})
			}

			await.Return(t, group.Wait, "each CreateVolume to return")

			made := 0

			for _, err := range errs {
				if err == nil {
					made++

					continue
				}

				harness.RequireCode(t, err, codes.ResourceExhausted)
			}

			require.LessOrEqual(t, made, 6, "want: no more volumes are made than fit")
			require.Positive(t, made, "want: a volume is made")
			require.Len(t, harness.ListAll(t, d), made, "want: the volumes that were made are listed")
			require.InDelta(t, 64*harness.MiB-made*10*harness.MiB, harness.AvailableCapacity(t, d), harness.IdentityBytes, "want: the volumes that were made take their sizes")

			if provisioning == "thin" {
				require.Equal(t, 6, made, "want: as many thin volumes are made as fit")
			}
		})
	}
}

// TestSlowCallsProvisionThePoolOnce has the images of concurrent calls be made
// slowly, between the first check of the pool's capacity and the record.
func TestSlowCallsProvisionThePoolOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
	size := harness.AvailableCapacity(t, d) * 2 / 5 / harness.MiB * harness.MiB

	served.Inject(t, faults.Fault{Ops: faults.Names, Delay: 100 * time.Millisecond})

	var (
		group sync.WaitGroup
		errs  [4]error
	)

	for i := range errs {
		group.Go(func() { _, errs[i] = createBlock(t, d, strconv.Itoa(i), size, "thin") })
	}

	await.Return(t, group.Wait, "each CreateVolume to return")
	require.Positive(t, served.Met(t), "slow requests")
	served.Release(t)

	for _, err := range errs {
		if err != nil {
			harness.RequireCode(t, err, codes.ResourceExhausted)
		}
	}

	require.Len(t, harness.ListAll(t, d), 2, "volumes of two fifths of the pool each")
}

func TestThickAndThinShareThePool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)

	for fsType, size := range map[string]int64{"ext4": 64 * harness.MiB, "xfs": 300 * harness.MiB, "btrfs": 256 * harness.MiB} {
		t.Run(fsType, func(t *testing.T) {
			ask := func(provisioning string) *csiclient.Publication {
				return harness.NewVolume(t, d, &csi.CreateVolumeRequest{
					Name: harness.NameOf(t) + provisioning, CapacityRange: harness.RequiredBytes(size),
					Parameters:         map[string]string{"provisioning": provisioning},
					VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, fsType)},
				})
			}

			thin, thick := ask("thin"), ask("thick")
			require.Zero(t, harness.AllocatedBytes(t, harness.ImageOf(d, thin.VolumeID)), "want: a thin volume allocates nothing")
			require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID)), size, "want: a thick volume has all of its blocks")

			for _, claim := range []*csiclient.Publication{thin, thick} {
				harness.BringUp(t, d, claim)
				harness.TakeDown(t, d, claim)
			}

			// The format neither fills the one nor empties the other.
			require.Less(t, harness.AllocatedBytes(t, harness.ImageOf(d, thin.VolumeID)), size/3, "want: the format of a thin volume allocates little")
			require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID)), size, "want: the format of a thick volume frees nothing")

			for _, claim := range []*csiclient.Publication{thin, thick} {
				harness.DeleteVolume(t, d, claim.VolumeID)
			}
		})
	}
}
