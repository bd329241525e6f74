package staging_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestATruncatedImageIsNotGrown truncates an image while the volume is in use, and while it is not:
// whatever grows or copies it would put zeros where data is lost.
func TestATruncatedImageIsNotGrown(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, capability := range map[string]*csi.VolumeCapability{
		"ext4": csiclient.MountCapability(harness.Writer, "ext4"), "block": csiclient.BlockCapability(harness.Writer),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			const size, left, larger = 64 * harness.MiB, 48 * harness.MiB, 128 * harness.MiB

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{capability}})
			image := harness.ImageOf(d, claim.VolumeID)

			harness.BringUp(t, d, claim)
			require.NoError(t, os.Truncate(image, left))

			refused := func(err error) {
				t.Helper()
				harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "truncated")
			}
			refuseGrowth := func() {
				t.Helper()

				_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
					VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(larger),
				})
				refused(err)

				_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: claim.VolumeID, Name: t.Name()})
				refused(err)

				_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
					Name: t.Name() + "-clone", VolumeCapabilities: []*csi.VolumeCapability{capability},
					CapacityRange: harness.RequiredBytes(larger), VolumeContentSource: harness.FromVolume(claim.VolumeID),
				})
				refused(err)
			}

			refuseGrowth()

			_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
			refused(err)

			device, attached, err := loop.NewLoops(loop.LoopsOptions{}).Status(harness.DevicesOf(t, d, claim.VolumeID)[0].Number)
			require.NoError(t, err)
			require.True(t, attached, "want: the device is attached")
			require.EqualValues(t, size, device.SizeBytes, "the device still shows what is missing")

			harness.TakeDown(t, d, claim)
			refuseGrowth()

			// The image that was put back is as any other one.
			require.NoError(t, os.Truncate(image, size))

			answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(larger),
			})
			require.NoError(t, err)
			require.EqualValues(t, larger, answer.GetCapacityBytes(), "want: the volume has the larger size")
		})
	}
}

// TestATruncatedImageIsNotGrownByItsNode has a node that grows images itself, since no controller does.
func TestATruncatedImageIsNotGrownByItsNode(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.WithoutCapabilities("controller:EXPAND_VOLUME"))
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)

	image := harness.ImageOf(d, claim.VolumeID)
	require.NoError(t, os.Truncate(image, 48*harness.MiB))

	_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(128 * harness.MiB),
	})
	harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "truncated")

	info, err := os.Stat(image)
	require.NoError(t, err)
	require.EqualValues(t, 48*harness.MiB, info.Size(), "want: the truncated image does not grow")
}

// TestATruncatedSnapshotIsNotRestored refuses the volume whose end would be zeros.
func TestATruncatedSnapshotIsNotRestored(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	snapshot := harness.TakeSnapshot(t, d, claim.VolumeID, t.Name())
	require.NoError(t, os.Truncate(filepath.Join(d.Pool(), "snapshots", snapshot+".img"), 48*harness.MiB))

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name() + "-restored", VolumeCapabilities: []*csi.VolumeCapability{claim.Capability},
		CapacityRange: harness.RequiredBytes(64 * harness.MiB), VolumeContentSource: harness.FromSnapshot(snapshot),
	})
	harness.RequireCode(t, err, codes.FailedPrecondition, snapshot, "truncated")
	require.Equal(t, []string{claim.VolumeID}, harness.ListAll(t, d))
}
