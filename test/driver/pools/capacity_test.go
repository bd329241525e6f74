package pools_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	volumerecord "github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestCapacityOfPoolsAndSegments: what each has free, and for which volumes.
func TestCapacityOfPoolsAndSegments(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	// On a filesystem of its own, no other files change the free space.
	second := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", second, "tmpfs", 0, "size=4g"))
	t.Cleanup(func() { harness.Unmount(t, second) })

	d := harness.Start(t, func(c *driver.Config) {
		c.Pools["second"] = second
		c.Topology = map[string]string{"zone": "z1"}
		c.MaxVolumeBytes = 1 << 30
	})

	capacity := func(request *csi.GetCapacityRequest) *csi.GetCapacityResponse {
		answer, err := d.GetCapacity(t.Context(), request)
		require.NoError(t, err)

		return answer
	}

	first := capacity(&csi.GetCapacityRequest{})
	require.Positive(t, first.GetAvailableCapacity(), "want: the pool has free space")
	require.EqualValues(t, 1<<30, first.GetMaximumVolumeSize().GetValue(), "want: the largest volume has the configured size")

	inSecond := &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "second"}}
	before := capacity(inSecond).GetAvailableCapacity()

	harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters: inSecond.GetParameters(), CapacityRange: harness.RequiredBytes(1 << 30),
	})
	require.Equal(t, before-1<<30, capacity(inSecond).GetAvailableCapacity(), "want: the volume takes its size of its pool")
	require.InDelta(t, int64(3<<30), capacity(inSecond).GetAvailableCapacity(), harness.MiB, "the driver's own files")
	conformance.Shows(t, "GetCapacity", "parameters given", "capacity of the pool that they name")

	for name, bytes := range map[string]int64{"a": 1 << 30, "b": 1 << 30, "c": 1 << 29} {
		harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: name, Parameters: inSecond.GetParameters(), CapacityRange: harness.RequiredBytes(bytes),
		})
	}

	require.Equal(t, capacity(inSecond).GetAvailableCapacity(), capacity(inSecond).GetMaximumVolumeSize().GetValue(), "want: the largest volume is as large as the free space")
	require.Less(t, capacity(inSecond).GetMaximumVolumeSize().GetValue(), int64(1<<29+1), "what the other pool could have")
	conformance.Shows(t, "GetCapacity", "parameters given", "maximum_volume_size of the pool that they name")

	some := []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")}
	require.Positive(t, capacity(&csi.GetCapacityRequest{VolumeCapabilities: some}).GetAvailableCapacity(), "want: the pool has free space")
	some = append(some, csiclient.MountCapability(harness.NodesWrite, ""))
	require.Zero(t, capacity(&csi.GetCapacityRequest{VolumeCapabilities: some}).GetAvailableCapacity(), "one of them is not supported")
	require.Zero(t, capacity(&csi.GetCapacityRequest{VolumeCapabilities: some}).GetMaximumVolumeSize().GetValue(), "one of them is not supported")
	conformance.Shows(t, "GetCapacity", "volume_capabilities given", "capacity for volumes with all of them")

	_, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "none"}})
	harness.RequireCode(t, err, codes.InvalidArgument, "none", "default", "second")

	for name, test := range map[string]struct {
		segments map[string]string
		ours     bool
	}{
		"the node's":      {map[string]string{volumerecord.NodeSegmentKey: harness.NodeID}, true},
		"the zone's":      {map[string]string{"zone": "z1"}, true},
		"both":            {map[string]string{volumerecord.NodeSegmentKey: harness.NodeID, "zone": "z1"}, true},
		"another node's":  {map[string]string{volumerecord.NodeSegmentKey: "x"}, false},
		"another zone's":  {map[string]string{volumerecord.NodeSegmentKey: harness.NodeID, "zone": "z2"}, false},
		"an unknown kind": {map[string]string{"rack": "7"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			there := &csi.Topology{Segments: test.segments}
			answer, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: there})
			require.NoError(t, err)
			require.Equal(t, test.ours, answer.GetAvailableCapacity() > 0, "want: the pool has free space only in its topology")
			conformance.Shows(t, "GetCapacity", "accessible_topology given", "capacity of that topology")

			_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: t.Name(), CapacityRange: harness.RequiredBytes(harness.MiB),
				VolumeCapabilities:        []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{there}},
			})
			if test.ours {
				require.NoError(t, err)
			} else {
				harness.RequireCode(t, err, codes.ResourceExhausted)
			}
		})
	}

	for fsType, smallest := range map[string]int64{"ext4": 4096, "xfs": 300 * harness.MiB, "btrfs": 256 * harness.MiB} {
		answer := capacity(&csi.GetCapacityRequest{
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, fsType)},
		})
		require.GreaterOrEqual(t, answer.GetMinimumVolumeSize().GetValue(), smallest, fsType)
		conformance.Shows(t, "GetCapacity", "volume_capabilities given", "minimum_volume_size of the filesystem")
	}
}
