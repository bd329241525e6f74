package rpc_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

func TestOnlyTextsAndListsOfAFieldAreItsTexts(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		message proto.Message
		field   protoreflect.Name
		want    []string
	}{
		{&csi.DeleteVolumeRequest{VolumeId: "v"}, "volume_id", []string{"v"}},
		{&csi.DeleteVolumeRequest{}, "volume_id", nil},
		{&csi.DeleteVolumeRequest{VolumeId: "v"}, "snapshot_id", nil},
		{&csi.DeleteVolumeRequest{Secrets: map[string]string{"k": "v"}}, "secrets", nil},
		{&csi.CreateVolumeGroupSnapshotRequest{SourceVolumeIds: []string{"a", "b"}}, "source_volume_ids", []string{"a", "b"}},
		{&csi.CreateVolumeGroupSnapshotRequest{}, "source_volume_ids", nil},
		{&csi.ListVolumesRequest{MaxEntries: 1}, "max_entries", nil},
		{&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}}, "volume", nil},
	} {
		require.Equal(t, test.want, rpc.Texts(test.message, test.field), "want: the texts of %s in %T %v", test.field, test.message, test.message)
	}
}

// TestWhatIsHiddenInARequest compares all of a request: keys of secrets remain, and other values of a context.
func TestWhatIsHiddenInARequest(t *testing.T) {
	t.Parallel()

	request := func(secret, token, flag string) *csi.NodePublishVolumeRequest {
		return &csi.NodePublishVolumeRequest{
			VolumeId: "v", Secrets: map[string]string{"key": secret},
			VolumeContext: map[string]string{rpc.KeyTokens: token, "pool": "fast"},
			VolumeCapability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: "ext4", MountFlags: []string{flag, flag}, VolumeMountGroup: "100",
			}}},
		}
	}
	given := request("hunter2", "token", "password=x")
	hidden := rpc.HideSecrets(given)
	require.True(t, proto.Equal(request(rpc.Stripped, rpc.Stripped, rpc.Stripped), hidden), "want: only credentials are replaced in %v", hidden)
	require.True(t, proto.Equal(request("hunter2", "token", "password=x"), given), "want: the request itself is left as it was")
}

func TestCreatedNamesWhatACallHasMade(t *testing.T) {
	t.Parallel()

	for want, response := range map[[2]string]any{
		{"volume", "v"}:   &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}},
		{"snapshot", "s"}: &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s"}},
		{"group", "g"}:    &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: "g"}},
		{}:                &csi.DeleteVolumeResponse{},
	} {
		kind, id := rpc.Created(response)
		require.Equal(t, want, [2]string{kind, id}, "want: the kind and id of what a %T says is made", response)
	}
}
