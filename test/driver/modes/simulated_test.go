package modes_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// TestASimulatedNodeMountsNothing stages and publishes a volume of each kind where nothing is mounted, and
// restarts the driver in between.
func TestASimulatedNodeMountsNothing(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.SimulateNode = true })

	info, err := d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Contains(t, info.GetManifest()["node"], "simulated")

	for _, kind := range harness.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Name: kind.Name, Parameters: kind.Parameters, CapacityRange: harness.RequiredBytes(kind.Bytes),
				VolumeCapabilities: []*csi.VolumeCapability{kind.Capability},
			})
			claim.StagingPath, claim.TargetPath = "/nowhere/staging/"+claim.VolumeID, "/nowhere/pods/"+claim.VolumeID
			calls := steps{claim}

			require.NoError(t, d.Attach(t.Context(), claim))
			require.NoError(t, calls.stage(t, d, claim.StagingPath))
			harness.RequireCode(t, calls.stage(t, d, "/elsewhere"), codes.FailedPrecondition, "it is staged at")
			require.NoError(t, calls.publish(t, d))
			require.NoFileExists(t, claim.TargetPath)

			d.Restart(t)

			harness.RequireCode(t, calls.unstage(t, d), codes.FailedPrecondition, "it is published at")
			require.NoError(t, harness.VolumeStats(t, d, claim, claim.TargetPath))

			_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
			harness.RequireCode(t, err, codes.FailedPrecondition)

			require.NoError(t, calls.unpublish(t, d))
			require.NoError(t, calls.unstage(t, d))
			require.NoError(t, d.Detach(t.Context(), claim))
			harness.DeleteVolume(t, d, claim.VolumeID)
		})
	}

	left, err := os.ReadDir(filepath.Join(d.Root, "kubelet"))
	require.NoError(t, err)
	require.Empty(t, left, "want: the simulated node leaves nothing")
}

// steps are the node's calls for a volume, whose client makes no directory.
type steps struct{ claim *csiclient.Publication }

func (s steps) stage(t *testing.T, d *harness.Driver, path string) error {
	t.Helper()

	_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: s.claim.VolumeID, StagingTargetPath: path, VolumeCapability: s.claim.Capability,
		VolumeContext: s.claim.VolumeContext, PublishContext: s.claim.PublishContext,
	})

	return err
}

func (s steps) publish(t *testing.T, d *harness.Driver) error {
	t.Helper()

	_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: s.claim.VolumeID, StagingTargetPath: s.claim.StagingPath, TargetPath: s.claim.TargetPath,
		VolumeCapability: s.claim.Capability, VolumeContext: s.claim.VolumeContext, PublishContext: s.claim.PublishContext,
	})

	return err
}

func (s steps) unpublish(t *testing.T, d *harness.Driver) error {
	t.Helper()

	_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: s.claim.VolumeID, TargetPath: s.claim.TargetPath,
	})

	return err
}

func (s steps) unstage(t *testing.T, d *harness.Driver) error {
	t.Helper()

	_, err := d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{
		VolumeId: s.claim.VolumeID, StagingTargetPath: s.claim.StagingPath,
	})

	return err
}
