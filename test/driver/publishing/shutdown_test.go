package publishing_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestAFilesystemThatHasShutDownIsNotPublished to the pod that replaces another, for as long as the
// volume is not unstaged. What is published already stays so.
func TestAFilesystemThatHasShutDownIsNotPublished(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			request := harness.Formatted(fs)
			request.VolumeCapabilities = []*csi.VolumeCapability{
				csiclient.MountCapability(harness.MultiWriter, fs),
			}
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)
			require.NoError(t, harness.AtRoot(claim.TargetPath, harness.ShutDownFilesystem))

			replacement := harness.AnotherTarget(claim, "replacement")
			harness.RequireCode(t, d.Publish(t.Context(), replacement), codes.FailedPrecondition,
				fs, claim.StagingPath, "has shut down", "scale a Deployment to 0")
			require.NoDirExists(t, replacement.TargetPath)
			require.NoError(t, d.Publish(t.Context(), claim))

			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Unstage(t.Context(), claim))
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), replacement))
			require.NoError(t, d.Unpublish(t.Context(), replacement))
		})
	}
}
