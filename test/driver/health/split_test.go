package health_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestControllerOfAnotherProcessReportsItsOwnView has controller and node in two processes: the
// controller knows nothing of the filesystem that the node has mounted.
func TestControllerOfAnotherProcessReportsItsOwnView(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	node := harness.Start(t, harness.InMode(driver.ModeNode), harness.Relists)
	controller := harness.Start(t, harness.InMode(driver.ModeController), harness.Relists,
		func(c *driver.Config) { c.Pools = node.Config.Pools })

	request := harness.Formatted("ext4")
	request.Name = t.Name()

	made, err := controller.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	claim := node.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = request.GetVolumeCapabilities()[0]

	require.NoError(t, controller.Attach(t.Context(), claim))
	require.NoError(t, node.Stage(t.Context(), claim))
	require.NoError(t, node.Publish(t.Context(), claim))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, node.Unpublish(ctx, claim))
		require.NoError(t, node.Unstage(ctx, claim))
	})

	onNode, onController := &sufferer{Driver: node, claim: claim}, &sufferer{Driver: controller, claim: claim}
	useSpace(t, onNode)
	onNode.awaitNode(t, health.OutOfCapacity)

	found := onController.ofController(t.Context(), t)
	found.requireReasons(t, nil, nil)

	listed, err := controller.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "want: the controller has no condition of its own")
}
