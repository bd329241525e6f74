package requests_test

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestWithoutAttachmentDataIsDurable(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	// This is what a power failure does to a volume that was never attached.
	require.NoError(t, os.Remove(harness.ImageOf(d, claim.VolumeID)))

	d.Restart(t, harness.WithoutCapabilities("PUBLISH_UNPUBLISH_VOLUME"))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))

	second := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "second"})

	// An attachment does not create permanent objects again.
	d.Restart(t, harness.WithoutCapabilities())

	for _, each := range []*csiclient.Publication{claim, second} {
		require.NoError(t, os.Remove(harness.ImageOf(d, each.VolumeID)))
		require.NoError(t, d.Attach(t.Context(), each))
		harness.RequireCode(t, d.Stage(t.Context(), each), codes.NotFound)
		require.NoError(t, d.Detach(t.Context(), each))
	}
}

// TestEarlierAttachmentsDoNotCount where no call can remove them.
func TestEarlierAttachmentsDoNotCount(t *testing.T) {
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	require.NoError(t, d.Attach(t.Context(), claim))

	d.Restart(t, harness.WithoutCapabilities("PUBLISH_UNPUBLISH_VOLUME"))
	harness.DeleteVolume(t, d, claim.VolumeID)
	require.Empty(t, harness.ListAll(t, d), "want: no volume is left")
}

func TestResponsesWithoutACapability(t *testing.T) {
	namespace.NeedRoot(t)

	for name, judge := range map[string]func(*testing.T, *harness.Driver, *csiclient.Publication){
		"TOPOLOGY": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			require.NoError(t, err)
			require.Nil(t, info.GetAccessibleTopology(), "want: NodeGetInfo has no topology without the capability")

			_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "placed", VolumeCapabilities: []*csi.VolumeCapability{claim.Capability},
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}},
			})
			harness.RequireCode(t, err, codes.InvalidArgument, "accessibility_requirements")

			_, err = d.GetCapacity(t.Context(), &csi.GetCapacityRequest{
				AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}},
			})
			harness.RequireCode(t, err, codes.InvalidArgument, "accessible_topology")

			for _, seen := range seenBy(t, d, claim) {
				require.Empty(t, seen.volume.GetAccessibleTopology(), "want: no volume has a topology without the capability")
				require.Equal(t, []string{harness.NodeID}, seen.nodes)
			}
		},
		"LIST_VOLUMES_PUBLISHED_NODES": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			for _, seen := range seenBy(t, d, claim) {
				require.Empty(t, seen.nodes, "want: no volume is published to a node without the capability")
				require.NotEmpty(t, seen.volume.GetAccessibleTopology(), "want: each volume has a topology")
			}
		},
		"PUBLISH_READONLY": func(t *testing.T, d *harness.Driver, _ *csiclient.Publication) {
			t.Helper()

			other := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "other"})
			other.ReadOnly = true
			harness.RequireCode(t, d.Attach(t.Context(), other), codes.InvalidArgument, "PUBLISH_READONLY")
		},
		"ONLINE": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			larger := &csi.ControllerExpandVolumeRequest{VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(128 * harness.MiB)}
			_, err := d.ControllerExpandVolume(t.Context(), larger)
			harness.RequireCode(t, err, codes.FailedPrecondition, harness.NodeID)
			harness.TakeDown(t, d, claim)

			_, err = d.ControllerExpandVolume(t.Context(), larger)
			require.NoError(t, err)
			harness.BringUp(t, d, claim)
		},
		"SINGLE_NODE_MULTI_WRITER": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			for _, mode := range []csi.VolumeCapability_AccessMode_Mode{harness.SingleWriter, harness.MultiWriter} {
				requireModeUnknown(t, d, claim, csiclient.MountCapability(mode, ""))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			// It was made and attached when the driver had the capability.
			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
			harness.BringUp(t, d, claim)
			d.Restart(t, harness.WithoutCapabilities(name))

			_, err := d.Capabilities(t.Context())
			require.NoError(t, err)
			judge(t, d, claim)
		})
	}
}

func requireModeUnknown(t *testing.T, d *harness.Driver, claim *csiclient.Publication, wanted *csi.VolumeCapability) {
	t.Helper()

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "other", VolumeCapabilities: []*csi.VolumeCapability{wanted},
	})
	harness.RequireCode(t, err, codes.InvalidArgument, "SINGLE_NODE_MULTI_WRITER")

	confirmed, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{wanted},
	})
	require.NoError(t, err)
	require.Nil(t, confirmed.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", confirmed.GetMessage())

	other := harness.AnotherTarget(claim, "other")
	other.Capability = wanted

	harness.RequireCode(t, d.Attach(t.Context(), other), codes.InvalidArgument, "SINGLE_NODE_MULTI_WRITER")
	harness.RequireCode(t, d.Publish(t.Context(), other), codes.FailedPrecondition, "SINGLE_NODE_MULTI_WRITER")
	harness.RequireCode(t, d.Stage(t.Context(), other), codes.AlreadyExists, "another capability")
}

type seen struct {
	volume *csi.Volume
	nodes  []string
}

// seenBy are the ways in which a CO sees the volume.
func seenBy(t *testing.T, d *harness.Driver, claim *csiclient.Publication) []seen {
	t.Helper()

	got, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)

	list, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetEntries(), 1, "want: the volume is listed")

	return []seen{
		{got.GetVolume(), got.GetStatus().GetPublishedNodeIds()},
		{list.GetEntries()[0].GetVolume(), list.GetEntries()[0].GetStatus().GetPublishedNodeIds()},
	}
}
