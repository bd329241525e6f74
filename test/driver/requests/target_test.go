package requests_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// A path that can't be right is the caller's mistake, also for a volume that
// could not be staged or published once more anyway.
func TestImpossiblePathsAreInvalidArguments(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, claim)

	for name, path := range map[string]string{
		"relative": "pods/elsewhere", "outside": "/var/tmp/elsewhere", "the directory itself": d.Config.KubeletDir,
		"dots": d.Config.KubeletDir + "/../elsewhere",
	} {
		_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: claim.VolumeID, PublishContext: claim.PublishContext, VolumeContext: claim.VolumeContext,
			StagingTargetPath: claim.StagingPath, TargetPath: path, VolumeCapability: claim.Capability,
		})
		harness.RequireCode(t, err, codes.InvalidArgument, "target_path", path)

		_, err = d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: claim.VolumeID, PublishContext: claim.PublishContext, VolumeContext: claim.VolumeContext,
			StagingTargetPath: path, VolumeCapability: claim.Capability,
		})
		harness.RequireCode(t, err, codes.InvalidArgument, "staging_target_path", path)
		require.NoFileExists(t, path, name)
	}

	require.NoError(t, d.Stage(t.Context(), claim), "it stays staged")
	require.NoError(t, d.Publish(t.Context(), claim), "it stays published")
}
