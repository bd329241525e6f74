package driver_test

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/orchestrator"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// thickVolume is a request for a thick volume.
func thickVolume(capability *csi.VolumeCapability, bytes int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: required(bytes),
		Parameters: map[string]string{"provisioning": "thick"},
	}
}

// TestThickVolumeInANearlyFullPool attaches, stages, publishes and attaches again
// a thick volume in an XFS pool that has less free space than the volume's size.
func TestThickVolumeInANearlyFullPool(t *testing.T) {
	namespace.NeedRoot(t)

	const size = 200 * mib

	for name, capability := range map[string]*csi.VolumeCapability{
		"mounted": orchestrator.Mount(writer, "ext4"), "raw block": orchestrator.Block(writer),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := harness.ReflinkPool(t, 600*mib)
			d := harness.Start(t, func(c *driver.Config) { c.Pools = map[string]string{"default": directory} })
			claim := newVolume(t, d, thickVolume(capability, size))

			var stat unix.Statfs_t

			require.NoError(t, unix.Statfs(directory, &stat))

			filler, err := os.Create(directory + "/filler")
			require.NoError(t, err)
			require.NoError(t, unix.Fallocate(int(filler.Fd()), 0, 0, int64(stat.Bavail)*stat.Bsize-size/2))
			require.NoError(t, filler.Close())

			for range 2 {
				bringUp(t, d, claim)
				require.GreaterOrEqual(t, allocated(t, imageOf(d, claim.VolumeID)), int64(size))
				takeDown(t, d, claim)
			}
		})
	}
}
