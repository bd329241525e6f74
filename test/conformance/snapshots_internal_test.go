package conformance

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func stream(kind csi.BlockMetadataType, offsetsAndSizes ...int64) *csi.GetMetadataAllocatedResponse {
	response := &csi.GetMetadataAllocatedResponse{BlockMetadataType: kind}
	for i := 0; i < len(offsetsAndSizes); i += 2 {
		response.BlockMetadata = append(response.BlockMetadata, &csi.BlockMetadata{ByteOffset: offsetsAndSizes[i], SizeBytes: offsetsAndSizes[i+1]})
	}

	return response
}

func TestEachSnapshotRuleFindsItsViolation(t *testing.T) {
	t.Parallel()

	const fixed, variable = csi.BlockMetadataType_FIXED_LENGTH, csi.BlockMetadataType_VARIABLE_LENGTH

	group := func(ready, memberReady bool, id string) *csi.CreateVolumeGroupSnapshotResponse {
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{
			GroupSnapshotId: "g", ReadyToUse: ready, Snapshots: []*csi.Snapshot{{SnapshotId: "s", GroupSnapshotId: id, ReadyToUse: memberReady}},
		}}
	}
	from, most := &csi.GetMetadataAllocatedRequest{StartingOffset: 8}, &csi.GetMetadataAllocatedRequest{MaxResults: 1}

	for rule, test := range map[string]struct {
		request       proto.Message
		good, another proto.Message
	}{
		"group_snapshot_id of every member":          {nil, group(true, true, "g"), group(true, true, "h")},
		"not ready_to_use with a member that is not": {nil, group(false, false, "g"), group(true, false, "g")},
		"size_bytes of every block positive":         {most, stream(variable, 0, 1), stream(variable, 0, 0)},
		"blocks increase without overlap":            {from, stream(variable, 8, 2, 10, 1), stream(variable, 8, 3, 10, 1)},
		"every block ends after starting_offset":     {from, stream(variable, 0, 9), stream(variable, 0, 8)},
		"blocks at most max_results":                 {most, stream(variable, 0, 1), stream(variable, 0, 1, 1, 1)},
		"blocks of one size":                         {from, stream(fixed, 8, 2, 10, 2), stream(fixed, 8, 2, 10, 3)},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()

			kept, broken := rulesOf(test.request, test.good)
			require.Contains(t, kept, rule)
			require.Empty(t, broken, "want: the good response breaks no rule")

			_, broken = rulesOf(test.request, test.another)
			require.Equal(t, []string{rule}, broken)
		})
	}
}

func TestBlocksAcrossMessages(t *testing.T) {
	t.Parallel()

	const across = "blocks increase across messages"

	for name, test := range map[string]struct {
		second       proto.Message
		kept, broken []string
	}{
		"behind":  {stream(csi.BlockMetadataType_VARIABLE_LENGTH, 4, 1), []string{across}, nil},
		"overlap": {stream(csi.BlockMetadataType_VARIABLE_LENGTH, 3, 1), nil, []string{across}},
		"nothing": {stream(csi.BlockMetadataType_VARIABLE_LENGTH), nil, nil},
	} {
		c := &call{}
		kept, broken := c.follows(stream(csi.BlockMetadataType_VARIABLE_LENGTH, 0, 1, 1, 3))
		require.Empty(t, kept, name)
		require.Empty(t, broken, name)

		kept, broken = c.follows(test.second)
		require.Equal(t, test.kept, kept, name)
		require.Equal(t, test.broken, broken, name)
	}
}

// TestSnapshotsAreRemembered compares a volume with the snapshot that it is made of, and a list with
// what was created.
func TestSnapshotsAreRemembered(t *testing.T) {
	t.Parallel()

	w := NewWorld()
	w.learn("CreateSnapshot", &csi.CreateSnapshotRequest{Name: "s"}, &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "1", SizeBytes: 8}})

	restore := &csi.CreateVolumeRequest{VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "1"},
	}}}
	list, all := &csi.ListSnapshotsRequest{}, &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: &csi.Snapshot{SnapshotId: "1"}}}}

	for size, want := range map[int64]bool{7: false, 8: true} {
		kept, broken := w.remembered("CreateVolume", restore, &csi.CreateVolumeResponse{Volume: &csi.Volume{CapacityBytes: size}})
		require.Equal(t, want, len(broken) == 0, "%d bytes", size)
		require.Equal(t, want, len(kept) == 1, "%d bytes", size)
	}

	kept, _ := w.remembered("ListSnapshots", list, all)
	require.Contains(t, kept, "every snapshot")

	kept, _ = w.remembered("ListSnapshots", list, &csi.ListSnapshotsResponse{})
	require.Empty(t, kept, "an entry is missing")

	kept, _ = w.remembered("ListSnapshots", &csi.ListSnapshotsRequest{SourceVolumeId: "v"}, all)
	require.Empty(t, kept, "the list is of one volume")
}

func TestUsesNamesTheOptionalParts(t *testing.T) {
	t.Parallel()

	long := &csi.NodePublishVolumeRequest{StagingTargetPath: strings.Repeat("/", 127), TargetPath: strings.Repeat("/", 128)}
	require.Equal(t, []string{"target_path of at least 128 bytes"}, uses(long))

	reads := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}}
	require.Equal(t, []string{"MULTI_NODE_READER_ONLY given"}, uses(&csi.NodeStageVolumeRequest{VolumeCapability: reads}))
	require.Equal(t, []string{"MULTI_NODE_READER_ONLY given"}, uses(&csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{reads}}))
}
