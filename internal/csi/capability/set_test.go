package capability_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestWithoutDisablesDependentCapabilities: the spec requires some capabilities with others.
func TestWithoutDisablesDependentCapabilities(t *testing.T) {
	t.Parallel()

	for name, also := range map[string][]capability.Name{
		"PUBLISH_UNPUBLISH_VOLUME": {capability.PublishReadonly, capability.ListVolumesPublishedNodes},
		"EXPAND_VOLUME":            {capability.Online},
		"TOPOLOGY":                 {capability.VolumeAccessibilityConstraints, capability.SnapshotConstraints},
		"GET_VOLUME_HEALTH":        {capability.ListVolumeHealth},
		"GROUP_CONTROLLER_SERVICE": {capability.VolumeGroupSnapshot},
		"CREATE_DELETE_VOLUME":     {capability.CreateDeleteSnapshot, capability.CloneVolume},
		"GET_CAPACITY":             nil,
	} {
		set, err := capability.Without(name)
		require.NoError(t, err)
		require.True(t, set.Has(capability.ListVolumes), "without %s", name)

		for _, gone := range also {
			require.False(t, set.Has(gone), "%s without %s", gone, name)
		}
	}

	_, err := capability.Without("NO_SUCH_CAPABILITY")
	require.ErrorIs(t, err, capability.ErrUnknown)

	_, err = capability.Without("ONLINE", "CONTROLLER_SERVICE")
	require.ErrorIs(t, err, capability.ErrContradiction)

	_, err = capability.Without("ONLINE", "CONTROLLER_SERVICE", "EXPAND_VOLUME")
	require.NoError(t, err)

	_, err = capability.Without("")
	require.ErrorIs(t, err, capability.ErrUnknown, "the empty name is no capability's alias")
}

func TestADisabledCapabilityDisablesItsRPCs(t *testing.T) {
	t.Parallel()

	set, err := capability.Without("EXPAND_VOLUME")
	require.NoError(t, err)

	for method, want := range map[string]bool{
		csi.Controller_ControllerExpandVolume_FullMethodName: true,
		csi.Node_NodeExpandVolume_FullMethodName:             true,
		csi.Controller_CreateVolume_FullMethodName:           false,
	} {
		name, disabled := set.DisabledBy(method)
		require.Equal(t, want, disabled, method)

		if disabled {
			require.Equal(t, capability.ExpandVolume, name)
		}
	}
}

func TestAMountGroupIsANumberAndNeedsItsCapability(t *testing.T) {
	t.Parallel()

	without, err := capability.Without("VOLUME_MOUNT_GROUP")
	require.NoError(t, err)

	for group, valid := range map[string]bool{"": true, "0": true, "1000": true, "-1": false, "users": false, "4294967296": false} {
		wanted := volume.Capability{MountGroup: group}

		err := capability.Set{}.CheckMountGroup(wanted)
		if valid {
			require.NoError(t, err, "group %q", group)
		} else {
			require.ErrorIs(t, err, volume.ErrCapability, "group %q", group)
		}

		err = without.CheckMountGroup(wanted)
		if group == "" {
			require.NoError(t, err, "no group")
		} else {
			errtext.Require(t, err, "VOLUME_MOUNT_GROUP is not advertised", "group %q", group)
		}
	}
}

func TestSomeAccessModesNeedTheirCapability(t *testing.T) {
	t.Parallel()

	without, err := capability.Without("SINGLE_NODE_MULTI_WRITER")
	require.NoError(t, err)

	for mode, needs := range map[string]bool{
		"SINGLE_NODE_WRITER": false, "MULTI_NODE_MULTI_WRITER": false,
		"SINGLE_NODE_SINGLE_WRITER": true, "SINGLE_NODE_MULTI_WRITER": true,
	} {
		wanted := volume.Capability{Mode: mode}
		require.NoError(t, capability.Set{}.CheckAccessMode(wanted), mode)

		if err := without.CheckAccessMode(wanted); needs {
			require.ErrorIs(t, err, volume.ErrCapability, mode)
		} else {
			require.NoError(t, err, mode)
		}
	}
}

// TestACapabilityIsDisabledInOneService of the two that have it.
func TestACapabilityIsDisabledInOneService(t *testing.T) {
	t.Parallel()

	set, err := capability.Without("node:EXPAND_VOLUME")
	require.NoError(t, err)
	require.True(t, set.Has(capability.ExpandVolume), "want: the controller has it")
	require.True(t, set.HasController(capability.ExpandVolume), "want: the controller has it")
	require.False(t, set.HasNode(capability.ExpandVolume), "want: the node does not have it")

	for method, want := range map[string]bool{
		csi.Controller_ControllerExpandVolume_FullMethodName: false, csi.Node_NodeExpandVolume_FullMethodName: true,
	} {
		_, disabled := set.DisabledBy(method)
		require.Equal(t, want, disabled, method)
	}

	for _, unknown := range []string{"pool:EXPAND_VOLUME", "node:LIST_VOLUMES", "controller:VOLUME_MOUNT_GROUP", "node:", ":EXPAND_VOLUME"} {
		_, err := capability.Without(unknown)
		require.ErrorIs(t, err, capability.ErrUnknown, unknown)
	}

	_, err = capability.Without("node:LIST_VOLUMES")
	errtext.Require(t, err, "that both services have, "+strings.Join(capability.NamesOfBoth(), ", "))

	for _, name := range capability.NamesOfBoth() {
		_, err := capability.Without("controller:"+name, "node:"+name)
		require.NoError(t, err, "want: %s can be disabled in each service", name)
	}
}

// TestResponsesHaveEnabledCapabilities: each capability is in the answers of its services, and no
// answer has one that is disabled.
func TestResponsesHaveEnabledCapabilities(t *testing.T) {
	t.Parallel()

	all := answers(capability.Set{})
	require.NotEmpty(t, all, "want: there are capabilities")

	for _, name := range capability.Names() {
		name, _, _ = strings.Cut(name, " ")

		set, err := capability.Without(name)
		if errors.Is(err, capability.ErrContradiction) {
			continue
		}

		require.NoError(t, err, name)
		require.False(t, set.Has(capability.Name(name)), "want: %s is disabled", name)

		left := answers(set)
		for _, each := range all {
			_, short, _ := strings.Cut(each, " ")
			if short == name {
				require.NotContains(t, left, each)
			}
		}

		for _, each := range left {
			require.Contains(t, all, each)

			_, short, _ := strings.Cut(each, " ")
			require.True(t, set.Has(capability.Name(short)), "want: %s is not disabled", each)
		}

		for _, each := range all {
			_, short, _ := strings.Cut(each, " ")
			if _, err := strconv.Atoi(short); err == nil {
				continue // it is of an earlier version of the spec, and has no name in this one
			}

			require.Equal(t, set.Has(capability.Name(short)), slices.Contains(left, each), "want: %s is answered unless it is disabled", each)
		}
	}
}

// answers are all answers of a set: the service and the capability.
func answers(set capability.Set) []string {
	var all []string

	for _, each := range set.Controller() {
		all = append(all, "controller "+each.GetRpc().GetType().String())
	}

	for _, each := range set.GroupController() {
		all = append(all, "group "+each.GetRpc().GetType().String())
	}

	for _, each := range set.Node() {
		all = append(all, "node "+each.GetRpc().GetType().String())
	}

	return all
}

// TestReadsHasTheReadingRPCs: exactly these RPCs change nothing.
func TestReadsHasTheReadingRPCs(t *testing.T) {
	t.Parallel()

	reads := []string{
		csi.Identity_GetPluginInfo_FullMethodName, csi.Identity_GetPluginCapabilities_FullMethodName, csi.Identity_Probe_FullMethodName,
		csi.Controller_ValidateVolumeCapabilities_FullMethodName, csi.Controller_ListVolumes_FullMethodName,
		csi.Controller_GetCapacity_FullMethodName,
		csi.Controller_ControllerGetCapabilities_FullMethodName, csi.Controller_ListSnapshots_FullMethodName,
		csi.Controller_GetSnapshot_FullMethodName, csi.Controller_ControllerGetVolume_FullMethodName,
		csi.Controller_ControllerGetVolumeHealth_FullMethodName, csi.Controller_ControllerListVolumeHealth_FullMethodName,
		csi.GroupController_GroupControllerGetCapabilities_FullMethodName, csi.GroupController_GetVolumeGroupSnapshot_FullMethodName,
		csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName, csi.SnapshotMetadata_GetMetadataDelta_FullMethodName,
		csi.Node_NodeGetVolumeStats_FullMethodName, csi.Node_NodeGetCapabilities_FullMethodName, csi.Node_NodeGetInfo_FullMethodName,
		csi.Node_NodeGetVolumeHealth_FullMethodName, csi.Node_NodeGetStorageHealth_FullMethodName,
	}

	for _, service := range []grpc.ServiceDesc{
		csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.SnapshotMetadata_ServiceDesc, csi.Node_ServiceDesc,
	} {
		var methods []string
		for _, each := range service.Methods {
			methods = append(methods, each.MethodName)
		}

		for _, each := range service.Streams {
			methods = append(methods, each.StreamName)
		}

		for _, each := range methods {
			method := "/" + service.ServiceName + "/" + each
			require.Equal(t, slices.Contains(reads, method), capability.Reads(method), method)
		}
	}
}
