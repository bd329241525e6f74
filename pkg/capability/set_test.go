package capability_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// TestWithoutDisablesWhatNeedsIt: the spec requires some capabilities with others.
func TestWithoutDisablesWhatNeedsIt(t *testing.T) {
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

func TestDisabledBy(t *testing.T) {
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

func TestCheckMountGroup(t *testing.T) {
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
			require.ErrorContains(t, err, "VOLUME_MOUNT_GROUP is not advertised", "group %q", group)
		}
	}
}

func TestCheckAccessMode(t *testing.T) {
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
