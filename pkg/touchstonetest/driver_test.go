package touchstonetest_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/touchstonetest"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestMain(m *testing.M) { os.Exit(namespace.Main(m)) }

// use stages and publishes a volume, and undoes both.
func use(t *testing.T, d *touchstonetest.Driver) {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), request("used"))
	require.NoError(t, err)

	id, capability := made.GetVolume().GetVolumeId(), request("").GetVolumeCapabilities()[0]
	staging, target := filepath.Join(d.Dir, "staging"), filepath.Join(d.Dir, "target")
	require.NoError(t, os.MkdirAll(staging, 0o750))

	attached, err := d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: touchstonetest.NodeID, VolumeCapability: capability, VolumeContext: made.GetVolume().GetVolumeContext(),
	})
	require.NoError(t, err)

	_, err = d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability,
		VolumeContext: made.GetVolume().GetVolumeContext(), PublishContext: attached.GetPublishContext(),
	})
	require.NoError(t, err)

	_, err = d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
		VolumeContext: made.GetVolume().GetVolumeContext(), PublishContext: attached.GetPublishContext(),
	})
	require.NoError(t, err)

	_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	require.NoError(t, err)
	_, err = d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	require.NoError(t, err)
	_, err = d.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: touchstonetest.NodeID})
	require.NoError(t, err)
	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.NoError(t, err)
	require.Len(t, d.AwaitCalls("Node*Volume", 4), 4, "want: AwaitCalls returns all four calls of the node")
}

func TestLifecycle(t *testing.T) {
	t.Parallel()

	for name, options := range map[string][]touchstonetest.Option{
		"as this user": nil, "simulated": {touchstonetest.SimulateNode()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use(t, touchstonetest.Start(t, append(options, touchstonetest.FailOnViolations())...))
		})
	}
}

// TestWithoutRoot runs a lifecycle as a user without any privilege.
func TestWithoutRoot(t *testing.T) {
	if child.UnprivilegedIn() != "" {
		use(t, touchstonetest.Start(t))

		return
	}

	namespace.NeedRoot(t)

	command, _ := child.Unprivileged(t, child.Limit, "TestWithoutRoot")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: TestWithoutRoot")
}

// TestFaultsOutliveARestart restarts a driver with an active rule, and clears it.
func TestFaultsOutliveARestart(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode(), touchstonetest.Without("GET_CAPACITY"),
		touchstonetest.Configure(func(c *touchstonetest.Config) { c.MaxVolumesPerNode = 7 }))

	made, err := d.CreateVolume(t.Context(), request("kept"))
	require.NoError(t, err)

	d.AddFault(`{name: refuse, match: {method: DeleteVolume}, act: {before: {code: INTERNAL, message: disk}}}`)
	d.Restart()

	remove := func() error {
		_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})

		return err
	}

	rpccode.Require(t, remove(), codes.Internal)
	d.ClearFaults("refuse")
	require.NoError(t, remove())

	_, err = d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	rpccode.Require(t, err, codes.Unimplemented)

	info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 7, info.GetMaxVolumesPerNode(), "want: the rule outlives the restart")
}

// TestViolationsAreFound publishes a volume that was not staged.
func TestViolationsAreFound(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode())
	made, err := d.CreateVolume(t.Context(), request("data"))
	require.NoError(t, err)

	_, err = d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: made.GetVolume().GetVolumeId(), StagingTargetPath: d.Dir + "/s", TargetPath: d.Dir + "/t",
		VolumeCapability: request("").GetVolumeCapabilities()[0], VolumeContext: made.GetVolume().GetVolumeContext(),
	})
	require.Error(t, err, "want: the violation is refused")
	require.NotEmpty(t, d.Violations(), "want: the violation is found")
	require.NotEmpty(t, d.Violations(`.method | endswith("NodePublishVolume")`, `.count == 1`), "want: both filters hold")
	require.Empty(t, d.Violations(`.count > 1`), "want: the filter does not hold")
	require.Len(t, d.Calls(touchstonetest.Filter{JQ: `.request.capacity_range.required_bytes == 64*1024*1024`}), 1, "want: one call of that size")
}

// TestHeldCall holds a call until it is released.
func TestHeldCall(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode(),
		touchstonetest.Faults(`{match: {method: CreateVolume}, act: {hold: door}}`))
	ended := make(chan error, 1)

	go func() {
		_, err := d.CreateVolume(t.Context(), request("held"))
		ended <- err
	}()

	require.Eventually(t, func() bool { return d.Release("door") == 1 }, child.Limit, time.Millisecond, "want: the call waits at the door")
	require.NoError(t, await.Receive(t, ended, "the released CreateVolume to return"))
}
