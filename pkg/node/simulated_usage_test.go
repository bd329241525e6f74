package node_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// TestSimulatedUsage asks for statistics, health and expansion of volumes in use, and of others.
func TestSimulatedUsage(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, nil)
	s.up(t, imageID)
	require.NoError(t, s.stage(t, stageRequest(directoryID)))

	calls := map[string]func(id, path, staging string) (int64, error){
		"NodeGetVolumeStats": func(id, path, staging string) (int64, error) {
			got, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path, StagingTargetPath: staging})
			if err != nil {
				return 0, err
			}

			require.Len(t, got.GetUsage(), 1, "want: the usage in bytes")
			require.Equal(t, csi.VolumeUsage_BYTES, got.GetUsage()[0].GetUnit())
			require.Equal(t, got.GetUsage()[0].GetTotal(), got.GetUsage()[0].GetAvailable(), "want: nothing is used")
			require.NotEmpty(t, got.ProtoReflect().GetUnknown(), "want: the answer has a condition")

			return got.GetUsage()[0].GetTotal(), nil
		},
		"NodeExpandVolume": func(id, path, staging string) (int64, error) {
			got, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: path, StagingTargetPath: staging})

			return got.GetCapacityBytes(), err
		},
	}

	for method, call := range calls {
		for name, test := range map[string]struct {
			id, path, staging string
			want              answer
			bytes             int64
		}{
			"at the target":           {imageID, target, staging, answer{}, imageBytes},
			"at the staging path":     {imageID, staging, "", answer{}, imageBytes},
			"a directory":             {directoryID, staging, "", answer{}, 0},
			"no id":                   {"", target, "", answer{codes.InvalidArgument, "volume_id"}, 0},
			"no path":                 {imageID, "", "", answer{codes.InvalidArgument, "volume_path is missing"}, 0},
			"a relative staging path": {imageID, target, "staging", answer{codes.InvalidArgument, "staging_target_path"}, 0},
			"not in use":              {missingID, target, "", answer{codes.NotFound, "is not in use on this node"}, 0},
			"at another path":         {imageID, "/other", "", answer{codes.NotFound, "is not at /other"}, 0},
		} {
			got, err := call(test.id, test.path, test.staging)
			test.want.require(t, err, method+" "+name)
			require.Equal(t, test.bytes, got, "the bytes of %s %s", method, name)
		}
	}

	for id, want := range map[string]answer{
		imageID: {}, missingID: {codes.NotFound, "is not in use on this node"}, "": {codes.InvalidArgument, "volume_id"},
	} {
		got, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		want.require(t, err, "NodeGetVolumeHealth of "+id)
		require.Empty(t, got.GetVolumeHealth().GetHealthStatuses(), "want: the volume is healthy")

		if err == nil {
			require.Equal(t, id, got.GetVolumeHealth().GetVolumeId())
		}
	}

	// Its image was removed behind the node's back.
	require.NoError(t, s.pool.Discard(t.Context(), pool.Object{ID: imageID, Backing: volume.BackingImage}))

	for method, call := range calls {
		_, err := call(imageID, target, "")
		answer{codes.NotFound, ""}.require(t, err, method+" of a volume that was removed")
	}
}

func TestSimulatedExpand(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, nil)
	s.up(t, imageID)

	ranged := func(required, limit int64) *csi.CapacityRange {
		return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}

	for name, test := range map[string]struct {
		asked *csi.CapacityRange
		of    *csi.VolumeCapability
		want  answer
	}{
		"its size":              {ranged(imageBytes, imageBytes), nil, answer{}},
		"a size above":          {ranged(0, imageBytes+1), nil, answer{}},
		"a limit below":         {ranged(0, imageBytes-1), nil, answer{codes.OutOfRange, "more than limit_bytes"}},
		"an empty range":        {ranged(0, 0), nil, answer{codes.InvalidArgument, "capacity_range is empty"}},
		"its capability":        {nil, csiclient.MountCapability(multiWriter, "ext4"), answer{}},
		"no access type":        {nil, &csi.VolumeCapability{}, answer{codes.InvalidArgument, "volume_capability"}},
		"another access type":   {nil, csiclient.BlockCapability(multiWriter), answer{codes.InvalidArgument, "access type"}},
		"another filesystem":    {nil, csiclient.MountCapability(multiWriter, "xfs"), answer{codes.InvalidArgument, "fs_type"}},
		"a mode of other pools": {nil, csiclient.MountCapability(5, ""), answer{codes.InvalidArgument, "--shared"}},
	} {
		got, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: imageID, VolumePath: target, CapacityRange: test.asked, VolumeCapability: test.of,
		})
		test.want.require(t, err, name)

		if err == nil {
			require.EqualValues(t, imageBytes, got.GetCapacityBytes(), name)
		}
	}
}

// TestSimulatedConditions: without VOLUME_CONDITION no answer has a condition.
func TestSimulatedConditions(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, without(t, "VOLUME_CONDITION"))
	s.up(t, imageID)

	got, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: imageID, VolumePath: target})
	require.NoError(t, err)
	require.Empty(t, got.ProtoReflect().GetUnknown(), "want: the answer has no condition")

	storage, err := s.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	require.NoError(t, err)
	require.Empty(t, storage.GetBackendHealth(), "want: without a monitor nothing is unhealthy")
}
