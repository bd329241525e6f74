package requests_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// everyCapability advertises also what is off unless asked for.
func everyCapability(c *driver.Config) { c.VolumeMountGroup = true }

// rpcs are those that only some drivers have, by name, with a request that says
// nothing: who serves the RPC refuses it for that.
func rpcs(d *harness.Driver) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"CreateVolume": func(ctx context.Context) error {
			_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{})

			return err
		},
		"DeleteVolume": func(ctx context.Context) error {
			_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})

			return err
		},
		"ControllerPublishVolume": func(ctx context.Context) error {
			_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{})

			return err
		},
		"ControllerUnpublishVolume": func(ctx context.Context) error {
			_, err := d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{})

			return err
		},
		"ValidateVolumeCapabilities": func(ctx context.Context) error {
			_, err := d.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{})

			return err
		},
		"ListVolumes": func(ctx context.Context) error {
			_, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{})

			return err
		},
		"GetCapacity": func(ctx context.Context) error {
			_, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})

			return err
		},
		"ControllerGetCapabilities": func(ctx context.Context) error {
			_, err := d.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})

			return err
		},
		"ControllerExpandVolume": func(ctx context.Context) error {
			_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{})

			return err
		},
		"ControllerGetVolume": func(ctx context.Context) error {
			_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{})

			return err
		},
		"ControllerModifyVolume": func(ctx context.Context) error {
			_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{})

			return err
		},
		"CreateSnapshot": func(ctx context.Context) error {
			_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{})

			return err
		},
		"DeleteSnapshot": func(ctx context.Context) error {
			_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{})

			return err
		},
		"ListSnapshots": func(ctx context.Context) error {
			_, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})

			return err
		},
		"GetSnapshot": func(ctx context.Context) error {
			_, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{})

			return err
		},
		"GroupControllerGetCapabilities": func(ctx context.Context) error {
			_, err := d.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})

			return err
		},
		"CreateVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{})

			return err
		},
		"DeleteVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{})

			return err
		},
		"GetVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{})

			return err
		},
		"GetMetadataAllocated": func(ctx context.Context) error {
			stream, err := d.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{})
			if err == nil {
				_, err = stream.Recv()
			}

			return err
		},
		"GetMetadataDelta": func(ctx context.Context) error {
			stream, err := d.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{})
			if err == nil {
				_, err = stream.Recv()
			}

			return err
		},
		"NodeStageVolume": func(ctx context.Context) error {
			_, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{})

			return err
		},
		"NodeUnstageVolume": func(ctx context.Context) error {
			_, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{})

			return err
		},
		"NodeGetVolumeStats": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{})

			return err
		},
		"ControllerGetVolumeHealth": func(ctx context.Context) error {
			_, err := d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{})

			return err
		},
		"ControllerListVolumeHealth": func(ctx context.Context) error {
			_, err := d.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})

			return err
		},
		"NodeGetVolumeHealth": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{})

			return err
		},
		"NodeGetStorageHealth": func(ctx context.Context) error {
			_, err := d.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})

			return err
		},
		"NodeExpandVolume": func(ctx context.Context) error {
			_, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{})

			return err
		},
	}
}

// disabled is what goes when one capability is disabled.
type disabled struct {
	name string
	// gone are the capabilities, as advertised names them.
	gone []string
	// unserved are the RPCs.
	unserved []string
}

func disabledOnes() []disabled {
	controller := []string{
		"controller CREATE_DELETE_VOLUME", "controller PUBLISH_UNPUBLISH_VOLUME", "controller LIST_VOLUMES",
		"controller GET_CAPACITY", "controller PUBLISH_READONLY", "controller EXPAND_VOLUME",
		"controller LIST_VOLUMES_PUBLISHED_NODES", "controller GET_VOLUME", "controller SINGLE_NODE_MULTI_WRITER",
		"controller MODIFY_VOLUME", "controller CREATE_DELETE_SNAPSHOT", "controller LIST_SNAPSHOTS",
		"controller CLONE_VOLUME", "controller GET_SNAPSHOT",
		"controller 11", "controller GET_VOLUME_HEALTH", "controller LIST_VOLUME_HEALTH",
	}

	return []disabled{
		{
			"CONTROLLER_SERVICE", append(controller, "plugin CONTROLLER_SERVICE"), []string{
				"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume",
				"ValidateVolumeCapabilities", "ListVolumes", "GetCapacity", "ControllerGetCapabilities",
				"ControllerExpandVolume", "ControllerGetVolume", "ControllerModifyVolume",
				"CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot",
				"ControllerGetVolumeHealth", "ControllerListVolumeHealth",
			},
		},
		{
			"VOLUME_ACCESSIBILITY_CONSTRAINTS",
			[]string{"plugin VOLUME_ACCESSIBILITY_CONSTRAINTS", "plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"},
			nil,
		},
		{
			"TOPOLOGY", []string{"plugin VOLUME_ACCESSIBILITY_CONSTRAINTS", "plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"}, nil,
		},
		{"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", []string{"plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"}, nil},
		{
			"GROUP_CONTROLLER_SERVICE",
			[]string{"plugin GROUP_CONTROLLER_SERVICE", "group CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"},
			[]string{
				"GroupControllerGetCapabilities", "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot",
			},
		},
		{
			"CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
			[]string{"group CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"},
			[]string{"CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot"},
		},
		{
			"SNAPSHOT_METADATA_SERVICE",
			[]string{"plugin SNAPSHOT_METADATA_SERVICE"},
			[]string{"GetMetadataAllocated", "GetMetadataDelta"},
		},
		{"CREATE_DELETE_SNAPSHOT", []string{"controller CREATE_DELETE_SNAPSHOT"}, []string{"CreateSnapshot", "DeleteSnapshot"}},
		{"LIST_SNAPSHOTS", []string{"controller LIST_SNAPSHOTS"}, []string{"ListSnapshots"}},
		{"GET_SNAPSHOT", []string{"controller GET_SNAPSHOT"}, []string{"GetSnapshot"}},
		{"CLONE_VOLUME", []string{"controller CLONE_VOLUME"}, nil},
		{"ONLINE", []string{"plugin ONLINE"}, nil},
		{
			"CREATE_DELETE_VOLUME",
			[]string{"controller CREATE_DELETE_VOLUME", "controller CREATE_DELETE_SNAPSHOT", "controller CLONE_VOLUME"},
			[]string{"CreateVolume", "DeleteVolume", "CreateSnapshot", "DeleteSnapshot"},
		},
		{
			"PUBLISH_UNPUBLISH_VOLUME",
			[]string{
				"controller PUBLISH_UNPUBLISH_VOLUME", "controller PUBLISH_READONLY", "controller LIST_VOLUMES_PUBLISHED_NODES",
			},
			[]string{"ControllerPublishVolume", "ControllerUnpublishVolume"},
		},
		{"PUBLISH_READONLY", []string{"controller PUBLISH_READONLY"}, nil},
		{"LIST_VOLUMES", []string{"controller LIST_VOLUMES"}, []string{"ListVolumes"}},
		{"LIST_VOLUMES_PUBLISHED_NODES", []string{"controller LIST_VOLUMES_PUBLISHED_NODES"}, nil},
		{"GET_VOLUME", []string{"controller GET_VOLUME"}, []string{"ControllerGetVolume"}},
		{"GET_CAPACITY", []string{"controller GET_CAPACITY"}, []string{"GetCapacity"}},
		{
			"EXPAND_VOLUME",
			[]string{"controller EXPAND_VOLUME", "node EXPAND_VOLUME", "plugin ONLINE"},
			[]string{"ControllerExpandVolume", "NodeExpandVolume"},
		},
		{"MODIFY_VOLUME", []string{"controller MODIFY_VOLUME"}, []string{"ControllerModifyVolume"}},
		{"SINGLE_NODE_MULTI_WRITER", []string{"controller SINGLE_NODE_MULTI_WRITER", "node SINGLE_NODE_MULTI_WRITER"}, nil},
		{"STAGE_UNSTAGE_VOLUME", []string{"node STAGE_UNSTAGE_VOLUME"}, []string{"NodeStageVolume", "NodeUnstageVolume"}},
		{"GET_VOLUME_STATS", []string{"node GET_VOLUME_STATS"}, []string{"NodeGetVolumeStats"}},
		{"VOLUME_MOUNT_GROUP", []string{"node VOLUME_MOUNT_GROUP"}, nil},
		// The numbers that are reserved in the spec, which has no names for them.
		{"VOLUME_CONDITION", []string{"controller 11", "node 4"}, nil},
		{
			"GET_VOLUME_HEALTH",
			[]string{"controller GET_VOLUME_HEALTH", "controller LIST_VOLUME_HEALTH", "node GET_VOLUME_HEALTH"},
			[]string{"ControllerGetVolumeHealth", "ControllerListVolumeHealth", "NodeGetVolumeHealth"},
		},
		{"LIST_VOLUME_HEALTH", []string{"controller LIST_VOLUME_HEALTH"}, []string{"ControllerListVolumeHealth"}},
		{"GET_STORAGE_HEALTH", []string{"node GET_STORAGE_HEALTH"}, []string{"NodeGetStorageHealth"}},
	}
}

// advertised names all capabilities after the service that has them.
func advertised(t *testing.T, d *harness.Driver) []string {
	t.Helper()

	caps, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	var names []string

	for _, each := range caps.Plugin {
		switch {
		case each.GetService() != nil:
			names = append(names, "plugin "+each.GetService().GetType().String())
		case each.GetVolumeExpansion().GetType() == csi.PluginCapability_VolumeExpansion_ONLINE:
			names = append(names, "plugin ONLINE")
		}
	}

	for _, each := range caps.Controller {
		names = append(names, "controller "+each.GetRpc().GetType().String())
	}

	for _, each := range caps.GroupController {
		names = append(names, "group "+each.GetRpc().GetType().String())
	}

	for _, each := range caps.Node {
		names = append(names, "node "+each.GetRpc().GetType().String())
	}

	return names
}

// TestEveryCapabilityCanBeDisabled also fails for an advertised one that the
// table lacks.
func TestEveryCapabilityCanBeDisabled(t *testing.T) {
	namespace.NeedRoot(t)

	full := advertised(t, harness.Start(t, everyCapability))

	var tried []string

	for _, row := range disabledOnes() {
		tried = append(tried, row.gone...)

		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, everyCapability, harness.WithoutCapabilities(row.name))
			left := slices.DeleteFunc(slices.Clone(full), func(name string) bool { return slices.Contains(row.gone, name) })
			require.ElementsMatch(t, left, advertised(t, d))

			for name, call := range rpcs(d) {
				if slices.Contains(row.unserved, name) {
					harness.RequireCode(t, call(t.Context()), codes.Unimplemented, name)
				} else {
					require.NotEqual(t, codes.Unimplemented.String(), status.Code(call(t.Context())).String(), name)
				}
			}

			d.Restart(t, harness.WithoutCapabilities())
			require.ElementsMatch(t, full, advertised(t, d))
		})
	}

	for _, name := range full {
		require.Contains(t, tried, name)
	}
}

func TestCapabilityThatNobodyKnows(t *testing.T) {
	namespace.NeedRoot(t)

	for _, name := range []string{"CLONE", "expand_volume", "", "UNKNOWN"} {
		config := harness.Start(t).Config
		config.Disabled = []string{"GET_VOLUME", name}

		_, err := driver.New(t.Context(), config)
		require.ErrorIs(t, err, driver.ErrConfig)
		require.ErrorContains(t, err, "disable-capability")
		require.ErrorContains(t, err, "EXPAND_VOLUME")
		require.ErrorContains(t, err, "TOPOLOGY")
	}
}

// TestLifeWithoutACapability leaves out the calls of what is disabled, as a CO
// does.
func TestLifeWithoutACapability(t *testing.T) {
	namespace.NeedRoot(t)

	for _, row := range disabledOnes() {
		for _, k := range harness.Kinds() {
			if !slices.Contains([]string{"ext4", "block", "directory"}, k.Name) {
				continue
			}

			t.Run(row.name+"/"+k.Name, func(t *testing.T) {
				t.Parallel()

				d := harness.Start(t, harness.WithoutCapabilities(row.name))
				uncreatable := slices.Contains(row.unserved, "CreateVolume")

				if uncreatable {
					d.Restart(t, harness.WithoutCapabilities())
				}

				volume := &lesserLife{Lifecycle: harness.NewLifecycle(t, d, k)}

				if uncreatable {
					d.Restart(t, harness.WithoutCapabilities(row.name))
				}

				volume.goOn()

				if uncreatable {
					d.Restart(t, harness.WithoutCapabilities())
				}

				volume.Delete()
			})
		}
	}
}

// lesserLife is the lifecycle of a volume of a CO that calls what is advertised only.
type lesserLife struct{ *harness.Lifecycle }

func (l *lesserLife) steps(choose func(csiclient.Capabilities, *csiclient.Publication) ([]csiclient.Step, error)) {
	l.T.Helper()

	caps, err := l.Driver.Capabilities(l.T.Context())
	require.NoError(l.T, err)

	todo, err := choose(caps, l.Claim)
	require.NoError(l.T, err)

	for _, step := range todo {
		require.NoError(l.T, step.Call(l.T.Context(), l.Claim), step.RPC)
	}
}

func (l *lesserLife) up() {
	l.T.Helper()
	l.steps(l.Driver.PublishSteps)
}

func (l *lesserLife) down() {
	l.T.Helper()
	l.steps(l.Driver.UnpublishSteps)
}

func (l *lesserLife) goOn() {
	l.T.Helper()

	l.up()
	sum := l.Write()
	// All of it is answered from what is there.
	l.up()
	l.Driver.Restart(l.T)
	l.up()
	l.Holds(sum)
	l.down()
	l.down()
	require.NoFileExists(l.T, l.Claim.TargetPath)
	l.up()
	l.Holds(sum)
	l.down()
	harness.RequireNothingStaged(l.T, l.Driver)
}
