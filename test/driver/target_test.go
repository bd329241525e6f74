package driver_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// A relative target is the caller's mistake, also for a volume that could not
// be published once more anyway.
func TestRelativeTargetIsInvalidAlsoOfAPublishedVolume(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	bringUp(t, d, claim)

	_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: claim.VolumeID, PublishContext: claim.PublishContext, VolumeContext: claim.VolumeContext,
		StagingTargetPath: claim.StagingPath, TargetPath: "pods/elsewhere", VolumeCapability: claim.Capability,
	})
	fails(t, err, codes.InvalidArgument, "target_path", "pods/elsewhere")
	require.NoError(t, d.Publish(t.Context(), claim), "it stays published")
}
