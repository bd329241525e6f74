package requests_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// everyCapability advertises also what is off unless asked for.
func everyCapability(c *driver.Config) { c.VolumeMountGroup = true }

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

// capabilityRPCs are the RPCs that return the capabilities, by the names of advertised.
var capabilityRPCs = map[string]string{
	"plugin": "GetPluginCapabilities", "controller": "ControllerGetCapabilities", "group": "GroupControllerGetCapabilities",
	"node": "NodeGetCapabilities",
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
	full := advertised(t, harness.Start(t, everyCapability))

	var tried []string

	for _, row := range disabledOnes() {
		tried = append(tried, row.gone...)

		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, everyCapability, harness.WithoutCapabilities(row.name))
			left := slices.DeleteFunc(slices.Clone(full), func(name string) bool { return slices.Contains(row.gone, name) })
			require.ElementsMatch(t, left, advertised(t, d))

			for _, each := range row.gone {
				service, capability, _ := strings.Cut(each, " ")
				conformance.Shows(t, capabilityRPCs[service], "without "+row.name, "does not advertise "+capability)
			}

			for _, method := range conformance.Methods() {
				// Where the RPC is served, a request without fields is refused or answered.
				request, err := conformance.NewMessage(method.Input())
				require.NoError(t, err)

				err = conformance.Call(t.Context(), d.Conn(), method, request)
				if name := string(method.Name()); slices.Contains(row.unserved, name) {
					harness.RequireCode(t, err, codes.Unimplemented, name)
				} else {
					require.NotEqual(t, codes.Unimplemented.String(), status.Code(err).String(), name)
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

func TestUnknownCapabilityIsRefused(t *testing.T) {
	for _, name := range []string{"CLONE", "expand_volume", "", "UNKNOWN"} {
		config := harness.Start(t).Config
		config.Disabled = []string{"GET_VOLUME", name}

		_, err := driver.New(t.Context(), config)
		require.ErrorIs(t, err, driver.ErrConfig)
		errtext.Require(t, err, "disable-capability")
		errtext.Require(t, err, "EXPAND_VOLUME")
		errtext.Require(t, err, "TOPOLOGY")
	}
}

// TestLifecycleWithoutACapability leaves out the calls of what is disabled, as a CO
// does.
func TestLifecycleWithoutACapability(t *testing.T) {
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
