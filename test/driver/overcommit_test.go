package driver_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// smallPool is a pool of its own filesystem, of so many bytes.
func smallPool(t *testing.T, bytes int64, more ...harness.Option) *harness.Driver {
	t.Helper()

	pool := t.TempDir()
	require.NoError(t, unix.Mount("none", pool, "tmpfs", 0, "size="+strconv.FormatInt(bytes+identityBytes, 10)))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(pool, unix.MNT_DETACH)) })

	d := harness.Start(t, append(more, func(c *driver.Config) { c.Pools = map[string]string{"default": pool} })...)
	eraseName(t, d)

	return d
}

// eraseName takes a block back that the tests need not count: the driver's name
// in its pool.
func eraseName(t *testing.T, d *harness.Driver) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(d.Pool(), "controller.lock"), 0))
}

func createBlock(t *testing.T, d *harness.Driver, name string, bytes int64, provisioning string) (string, error) {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: required(bytes), Parameters: map[string]string{"provisioning": provisioning},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})

	return made.GetVolume().GetVolumeId(), err
}

func available(t *testing.T, d *harness.Driver) int64 {
	t.Helper()

	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)

	return capacity.GetAvailableCapacity()
}

func TestPoolIsNotPromisedTwice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := smallPool(t, 64*mib)
			require.InDelta(t, 64*mib, available(t, d), identityBytes)

			first, err := createBlock(t, d, "first", 40*mib, provisioning)
			require.NoError(t, err)
			require.InDelta(t, 24*mib, available(t, d), identityBytes)

			before := everything(t, d)
			_, err = createBlock(t, d, "second", 24*mib+2*identityBytes, provisioning)
			fails(t, err, codes.ResourceExhausted, "default")

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: first, CapacityRange: required(65 * mib),
			})
			fails(t, err, codes.ResourceExhausted, "default")
			require.Equal(t, before, everything(t, d))

			d.Restart(t)
			eraseName(t, d)
			require.InDelta(t, 24*mib, available(t, d), identityBytes)

			// To the last page.
			_, err = createBlock(t, d, "third", 24*mib, provisioning)
			require.NoError(t, err)
			require.LessOrEqual(t, available(t, d), int64(identityBytes))

			deleteVolume(t, d, first)
			require.InDelta(t, 40*mib, available(t, d), identityBytes)
		})
	}
}

func TestThickExpansionUsesTheWholePool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := smallPool(t, 64*mib)
	id, err := createBlock(t, d, "pvc", 4*mib, "thick")
	require.NoError(t, err)

	answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: required(60 * mib),
	})
	require.NoError(t, err)
	require.EqualValues(t, 60*mib, answer.GetCapacityBytes())
	require.EqualValues(t, 60*mib, allocated(t, imageOf(d, id)))
	require.EqualValues(t, 4*mib, available(t, d))
}

// identityBytes is what the identity of a pool takes of its filesystem.
const identityBytes = 4096

func TestOvercommit(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := smallPool(t, 64*mib, func(c *driver.Config) { c.Overcommit = 2 })
	require.EqualValues(t, 128*mib, available(t, d))

	_, err := createBlock(t, d, "thin", 64*mib, "thin")
	require.NoError(t, err)
	_, err = createBlock(t, d, "thick", 60*mib, "thick")
	require.NoError(t, err)

	// Provisioned as often as is allowed, and yet the space is not there.
	_, err = createBlock(t, d, "no", 8*mib, "thin")
	fails(t, err, codes.ResourceExhausted)

	_, err = createBlock(t, d, "full", 4*mib+4096, "thick")
	fails(t, err, codes.ResourceExhausted)
	require.Len(t, listAll(t, d), 2)

	images, err := os.ReadDir(filepath.Join(d.Pool(), "images"))
	require.NoError(t, err)
	require.Len(t, images, 2)
}

func TestPoolIsNotPromisedTwiceAtOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := smallPool(t, 64*mib)
			errs := make([]error, 24)

			var group sync.WaitGroup
			for i := range errs {
				group.Go(func() {
					_, errs[i] = createBlock(t, d, strconv.Itoa(i), 10*mib, provisioning)
				})
			}

			group.Wait()

			made := 0

			for _, err := range errs {
				if err == nil {
					made++

					continue
				}

				fails(t, err, codes.ResourceExhausted)
			}

			require.LessOrEqual(t, made, 6)
			require.Positive(t, made)
			require.Len(t, listAll(t, d), made)
			require.InDelta(t, 64*mib-made*10*mib, available(t, d), identityBytes)

			if provisioning == "thin" {
				require.Equal(t, 6, made)
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
	d := harness.Start(t, poolAt("default", filepath.Join(served.Path, "pool")))
	size := available(t, d) * 2 / 5 / mib * mib

	served.Inject(t, faults.Fault{Ops: faults.Names, Delay: 100 * time.Millisecond})

	var (
		group sync.WaitGroup
		errs  [4]error
	)

	for i := range errs {
		group.Go(func() { _, errs[i] = createBlock(t, d, strconv.Itoa(i), size, "thin") })
	}

	group.Wait()
	require.Positive(t, served.Met(t), "slow requests")
	served.Release(t)

	for _, err := range errs {
		if err != nil {
			fails(t, err, codes.ResourceExhausted)
		}
	}

	require.Len(t, listAll(t, d), 2, "volumes of two fifths of the pool each")
}

func TestThinAndThick(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)

	for fsType, size := range map[string]int64{"ext4": 64 * mib, "xfs": 300 * mib, "btrfs": 256 * mib} {
		t.Run(fsType, func(t *testing.T) {
			ask := func(provisioning string) *csiclient.Publication {
				return newVolume(t, d, &csi.CreateVolumeRequest{
					Name: nameOf(t) + provisioning, CapacityRange: required(size),
					Parameters:         map[string]string{"provisioning": provisioning},
					VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, fsType)},
				})
			}

			thin, thick := ask("thin"), ask("thick")
			require.Zero(t, allocated(t, imageOf(d, thin.VolumeID)))
			require.GreaterOrEqual(t, allocated(t, imageOf(d, thick.VolumeID)), size)

			for _, claim := range []*csiclient.Publication{thin, thick} {
				bringUp(t, d, claim)
				takeDown(t, d, claim)
			}

			// The format neither fills the one nor empties the other.
			require.Less(t, allocated(t, imageOf(d, thin.VolumeID)), size/3)
			require.GreaterOrEqual(t, allocated(t, imageOf(d, thick.VolumeID)), size)

			for _, claim := range []*csiclient.Publication{thin, thick} {
				deleteVolume(t, d, claim.VolumeID)
			}
		})
	}
}
