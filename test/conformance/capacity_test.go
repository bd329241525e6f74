package conformance_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// TestMaximumVolumeSizeWorks: the answer of GetCapacity is a size that CreateVolume takes, also where
// the configured maximum is no multiple of the unit of sizes.
func TestMaximumVolumeSizeWorks(t *testing.T) {
	t.Parallel()

	const configured = 100_000_001

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = configured })
	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)

	largest := capacity.GetMaximumVolumeSize().GetValue()
	require.LessOrEqual(t, largest, int64(configured), "want: the largest volume is within the configured size")

	request := &csi.CreateVolumeRequest{
		Name: "largest", VolumeCapabilities: []*csi.VolumeCapability{mounted}, CapacityRange: harness.RequiredBytes(largest),
	}
	_, err = d.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	request.Name, request.CapacityRange = "larger", harness.RequiredBytes(largest+1)
	_, err = d.CreateVolume(t.Context(), request)
	harness.RequireCode(t, err, codes.OutOfRange)
}

// TestCapacityForThickVolumes: overcommitment makes no space for volumes that allocate all of theirs.
func TestCapacityForThickVolumes(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Overcommit = 4 })
	available := func(provisioning string) int64 {
		capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"provisioning": provisioning}})
		require.NoError(t, err)

		return capacity.GetAvailableCapacity()
	}

	require.Greater(t, available("thin"), 3*available("thick"), "want: thin volumes may take several times the free space")
	require.Positive(t, available("thick"), "want: the pool has space for thick volumes")
}
