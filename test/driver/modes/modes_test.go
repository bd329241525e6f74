package modes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestServicesOfEachMode(t *testing.T) {
	t.Parallel()

	for mode, test := range map[driver.Mode]struct{ controller, node bool }{
		driver.ModeAll:        {true, true},
		driver.ModeController: {true, false},
		driver.ModeNode:       {false, true},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.InMode(mode))
			all, err := d.Capabilities(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.controller, len(all.Controller) > 0, "want: the controller service has capabilities where it is served")
			require.Equal(t, test.controller, all.HasController, "want: the controller service is advertised where it is served")
			require.Equal(t, test.node, all.HasNode, "want: the node service is advertised where it is served")

			// All processes of a plugin advertise the same.
			var advertised []csi.PluginCapability_Service_Type
			for _, capability := range all.Plugin {
				if service := capability.GetService(); service != nil {
					advertised = append(advertised, service.GetType())
				}
			}

			require.Equal(t, []csi.PluginCapability_Service_Type{
				csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
				csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE,
				csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS,
			}, advertised)
			require.Contains(t, fmt.Sprint(all.Plugin), csi.PluginCapability_VolumeExpansion_ONLINE.String())
			conformance.Shows(t, "GetPluginCapabilities", string(mode)+" plugin", "the same as in each mode")

			info, err := d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
			require.NoError(t, err)
			require.Equal(t, d.Config.DriverName, info.GetName())
			require.Equal(t, string(mode), info.GetManifest()["mode"])

			_, err = d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
			require.Equal(t, test.controller, status.Code(err) == codes.OK, "%v", err)
			require.Equal(t, !test.controller, status.Code(err) == codes.Unimplemented, "%v", err)

			_, err = d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			require.Equal(t, test.node, status.Code(err) == codes.OK, "%v", err)
			require.Equal(t, !test.node, status.Code(err) == codes.Unimplemented, "%v", err)
		})
	}
}

// TestNodeNeedsNoStateOfTheController: they share a pool, and nothing else.
func TestNodeNeedsNoStateOfTheController(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range harness.KindRequests(harness.Writer) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			controller := harness.Start(t, harness.InMode(driver.ModeController))
			node := harness.Start(t, harness.InMode(driver.ModeNode), func(c *driver.Config) { c.Pools = controller.Config.Pools })
			ctx := t.Context()

			volume := harness.NewVolume(t, controller, request)
			require.NoError(t, controller.Attach(ctx, volume))

			claim := node.Claim(t, volume.VolumeID)
			claim.VolumeContext, claim.PublishContext = volume.VolumeContext, volume.PublishContext
			claim.Capability = volume.Capability

			require.NoError(t, node.Stage(ctx, claim))
			t.Cleanup(func() {
				ctx := context.WithoutCancel(ctx)
				require.NoError(t, node.Unpublish(ctx, claim))
				require.NoError(t, node.Unstage(ctx, claim))
			})
			require.NoError(t, node.Publish(ctx, claim))
			harness.WriteBlock(t, claim)

			_, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
			harness.RequireCode(t, err, codes.FailedPrecondition, controller.Config.NodeID)

			// Each can be away while the other works.
			controller.Stop()
			node.Restart(t)
			harness.RequireBlock(t, claim)
			require.NoError(t, node.Publish(ctx, claim))
			require.NoError(t, harness.VolumeStats(t, node, claim, claim.TargetPath))
			conformance.Shows(t, "NodeGetInfo", "never called", "volumes are staged and published")
			require.NoError(t, node.Unpublish(ctx, claim))
			require.NoError(t, node.Unstage(ctx, claim))

			controller.Restart(t)
			require.NoError(t, controller.Detach(ctx, volume))
			harness.DeleteVolume(t, controller, volume.VolumeID)

			// Only the pool shows the node that there is no such volume. To the node it may be lost: it is a
			// condition for as long as the CO may repeat the call.
			node.Leaves("a volume that could not be staged, and may be lost", leftover.Memory)
			harness.RequireCode(t, node.Stage(ctx, claim), codes.NotFound, claim.VolumeID)
		})
	}
}

// TestControllerNeedsNoPrivilege runs the test after this one as an unprivileged user, who may
// open no device.
func TestControllerNeedsNoPrivilege(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	command, _ := child.Unprivileged(t, child.Limit, "TestAsUnprivilegedUser")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: TestAsUnprivilegedUser")
}

func TestAsUnprivilegedUser(t *testing.T) {
	dir := child.UnprivilegedIn()
	if dir == "" {
		t.Skip("a part of TestControllerNeedsNoPrivilege")
	}

	require.Equal(t, child.UnprivilegedID, os.Geteuid(), "want: the process has no privilege")
	require.ErrorIs(t, unix.Access("/dev/loop-control", unix.R_OK|unix.W_OK), unix.EACCES)

	config := driver.Defaults()
	config.Mode, config.Version, config.NodeID = driver.ModeController, "test", harness.NodeID
	config.Endpoint, config.StateDir = "unix://"+filepath.Join(dir, "csi.sock"), filepath.Join(dir, "state")
	config.Pools = map[string]string{"default": filepath.Join(dir, "pool")}

	served, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- served.Run(ctx) }()

	client, err := csiclient.Connect(config.Endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)
	harness.AwaitReady(t, client)

	for _, kind := range harness.Kinds() {
		made, err := client.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: kind.Name, Parameters: kind.Parameters, CapacityRange: harness.RequiredBytes(kind.Bytes),
			VolumeCapabilities: []*csi.VolumeCapability{kind.Capability},
		})
		require.NoError(t, err, kind.Name)

		claim := &csiclient.Publication{VolumeID: made.GetVolume().GetVolumeId(), NodeID: harness.NodeID, Capability: kind.Capability}
		require.NoError(t, client.Attach(ctx, claim), kind.Name)

		_, err = client.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(kind.Larger),
		})
		require.NoError(t, err, kind.Name)

		page, err := client.ListVolumes(ctx, &csi.ListVolumesRequest{})
		require.NoError(t, err)
		require.Len(t, page.GetEntries(), 1, "want: the volume is listed")
		require.Equal(t, kind.Larger, page.GetEntries()[0].GetVolume().GetCapacityBytes(), "want: the volume has the larger size")

		require.NoError(t, client.Detach(ctx, claim), kind.Name)
		_, err = client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
		require.NoError(t, err, kind.Name)
	}

	require.NoError(t, client.Close())
	stop()
	require.NoError(t, await.Receive(t, ended, "the driver to end"))
}
