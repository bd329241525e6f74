package strict_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

// fieldsOfCapabilities have requests with a field that a capability allows.
var fieldsOfCapabilities = []struct {
	capability string
	request    proto.Message
	want       [3]string
}{
	{
		"VOLUME_ACCESSIBILITY_CONSTRAINTS", &csi.CreateVolumeRequest{Name: "n", AccessibilityRequirements: &csi.TopologyRequirement{}},
		[3]string{"topology-not-advertised", "n", "VOLUME_ACCESSIBILITY_CONSTRAINTS is not advertised"},
	},
	{
		"MODIFY_VOLUME", &csi.CreateVolumeRequest{Name: "n", MutableParameters: map[string]string{"readIOPS": "5"}},
		[3]string{"mutable-parameters-not-advertised", "n", "mutable_parameters is not empty"},
	},
	{
		"CLONE_VOLUME", &csi.CreateVolumeRequest{Name: "n", VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}},
		}},
		[3]string{"content-source-not-advertised", "n", "the source is a volume; CLONE_VOLUME is not advertised"},
	},
	{
		"CREATE_DELETE_SNAPSHOT", &csi.CreateVolumeRequest{Name: "n", VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}},
		}},
		[3]string{"content-source-not-advertised", "n", "the source is a snapshot; CREATE_DELETE_SNAPSHOT is not advertised"},
	},
	{
		"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", &csi.CreateSnapshotRequest{Name: "s", AccessibilityRequirements: &csi.TopologyRequirement{}},
		[3]string{"topology-not-advertised", "s", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not advertised"},
	},
	{
		"PUBLISH_READONLY", &csi.ControllerPublishVolumeRequest{VolumeId: "v", Readonly: true},
		[3]string{"readonly-not-advertised", "v", "readonly is true"},
	},
	{
		"VOLUME_MOUNT_GROUP", &csi.NodeStageVolumeRequest{VolumeId: "v", VolumeCapability: ofGroup("100")},
		[3]string{"mount-group-not-advertised", "v", "volume_mount_group is set"},
	},
	{
		"VOLUME_MOUNT_GROUP", &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: "v", VolumeCapabilities: []*csi.VolumeCapability{ofGroup(""), ofGroup("100")},
		},
		[3]string{"mount-group-not-advertised", "v", "volume_mount_group is set"},
	},
	{
		"SINGLE_NODE_MULTI_WRITER", &csi.NodeStageVolumeRequest{
			VolumeId: "v", VolumeCapability: ofMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER),
		},
		[3]string{"access-mode-not-advertised", "v", "the access mode is SINGLE_NODE_SINGLE_WRITER"},
	},
	{
		"SINGLE_NODE_MULTI_WRITER", &csi.NodePublishVolumeRequest{
			VolumeId: "v", TargetPath: target, VolumeCapability: ofMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER),
		},
		[3]string{"access-mode-not-advertised", "v", "the access mode is SINGLE_NODE_MULTI_WRITER"},
	},
	{
		"PUBLISH_UNPUBLISH_VOLUME", &csi.NodeStageVolumeRequest{VolumeId: "v", PublishContext: publishContext()},
		[3]string{"publish-context-not-advertised", "v", "publish_context is not empty"},
	},
	{
		"CONTROLLER_SERVICE", &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, PublishContext: publishContext()},
		[3]string{"publish-context-not-advertised", "v", "publish_context is not empty"},
	},
}

func ofGroup(group string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: group}}}
}

func ofMode(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
}

// ordinary are requests without any field that only some capability allows.
func ordinary() []proto.Message {
	mode := ofMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	mode.AccessType = ofGroup("").GetAccessType()

	return []proto.Message{
		&csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: []*csi.VolumeCapability{mode}},
		&csi.CreateSnapshotRequest{Name: "s"},
		&csi.ControllerPublishVolumeRequest{VolumeId: "v", VolumeCapability: mode},
		&csi.NodeStageVolumeRequest{VolumeId: "v", VolumeCapability: mode},
		&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, VolumeCapability: mode},
	}
}

// TestFieldsNeedTheirCapability: each field is a violation without its capability, and only then.
func TestFieldsNeedTheirCapability(t *testing.T) {
	t.Parallel()

	for _, test := range fieldsOfCapabilities {
		f := newFixture(t, strict.Observe)
		f.begin(t.Context(), test.request)(nil, errFailed)
		require.Empty(t, f.List(), "want: %s allows %v", test.capability, test.request)

		f = newFixture(t, strict.Observe, test.capability)
		for _, request := range ordinary() {
			f.begin(t.Context(), request)(nil, errFailed)
		}

		for _, record := range f.List() {
			require.Equal(t, "call-not-advertised", record.ID, "want: a request without the field is none of a field without %s", test.capability)
		}

		f.Clear()
		f.begin(t.Context(), test.request)(nil, errFailed)

		record := f.List()[0]
		require.Equal(t, test.want, [3]string{record.ID, record.Object, record.Detail}, "want: the field without %s", test.capability)
		require.Len(t, f.List(), 1, "want: the field without %s is one violation", test.capability)
	}
}

// TestKeysOfSecretsHaveTheCharactersOfTheSpec, and at least one.
func TestKeysOfSecretsHaveTheCharactersOfTheSpec(t *testing.T) {
	t.Parallel()

	for key, want := range map[string]int{"a": 0, "A-z_0.9": 0, "": 1, "a b": 1, "ä": 1, "a/b": 1, "a\n": 1} {
		f := newFixture(t, strict.Observe)
		f.begin(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"good": "x", key: "x"}})(nil, errFailed)
		require.Len(t, f.List(), want, "want: the key %q is allowed or not", key)

		for _, record := range f.List() {
			require.Equal(t, [3]string{"secret-key-malformed", "v", "a key of secrets has another character, or none"},
				[3]string{record.ID, record.Object, record.Detail}, "want: the key %q is named by no record", key)
		}
	}
}

// TestAViolationNamesTheObjectOfItsRequest by its id or name, or else the call.
func TestAViolationNamesTheObjectOfItsRequest(t *testing.T) {
	t.Parallel()

	bad := map[string]string{"": "x"}

	for want, request := range map[string]proto.Message{
		"volume": &csi.DeleteVolumeRequest{VolumeId: "volume", Secrets: bad}, "snapshot": &csi.DeleteSnapshotRequest{SnapshotId: "snapshot", Secrets: bad},
		"group":         &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group", Secrets: bad},
		"name":          &csi.CreateSnapshotRequest{Name: "name", SourceVolumeId: "v", Secrets: bad},
		"ListSnapshots": &csi.ListSnapshotsRequest{Secrets: bad},
	} {
		f := newFixture(t, strict.Observe)
		f.begin(t.Context(), request)(nil, errFailed)
		require.Equal(t, want, f.List()[0].Object, "want: the object of %T", request)
	}
}
