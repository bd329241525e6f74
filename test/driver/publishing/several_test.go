package publishing_test

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestAVolumeIsUsedWithEachOfItsCapabilities creates volumes with several capabilities, and uses each with all of them in
// turn. One that is not supported is enough for a refusal.
func TestAVolumeIsUsedWithEachOfItsCapabilities(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	several := conformance.Where("several volume_capabilities", func(r *csi.CreateVolumeRequest) bool { return len(r.GetVolumeCapabilities()) > 1 })
	one := conformance.Where("one of volume_capabilities unsupported", func(r *csi.CreateVolumeRequest) bool {
		unsupported := 0

		for _, each := range r.GetVolumeCapabilities() {
			if each.GetAccessMode().GetMode() == harness.NodesWrite {
				unsupported++
			}
		}

		return unsupported == 1 && len(r.GetVolumeCapabilities()) > 1
	})

	wanted := []*csi.VolumeCapability{
		csiclient.MountCapability(harness.Writer, "ext4"), csiclient.MountCapability(harness.ReaderOnly, "ext4"),
		csiclient.MountCapability(harness.MultiWriter, "ext4"), csiclient.BlockCapability(harness.SingleWriter),
	}
	request := &csi.CreateVolumeRequest{
		Name: "several", CapacityRange: harness.RequiredBytes(16 * harness.MiB), VolumeCapabilities: wanted,
	}
	made, err := d.CreateVolume(conformance.Exercise(t.Context(), several), request)
	require.NoError(t, err)

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()

	for _, capability := range wanted {
		claim.Capability = capability
		harness.BringUp(t, d, claim)

		if capability.GetAccessMode().GetMode() != harness.ReaderOnly {
			require.NoError(t, harness.WriteThrough(harness.DataPath(claim)), "%v", capability)
		}

		harness.TakeDown(t, d, claim)
	}

	conformance.Shows(t, "CreateVolume", several.Name, "usable with each")

	request.Name, request.VolumeCapabilities = "refused", append(slices.Clone(wanted), csiclient.MountCapability(harness.NodesWrite, "ext4"))
	_, err = d.CreateVolume(conformance.Exercise(t.Context(), one), request)
	harness.RequireCode(t, err, codes.InvalidArgument)
	require.Len(t, harness.ListAll(t, d), 1, "want: the refused volume is not listed")
}
