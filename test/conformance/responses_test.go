package conformance_test

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/test/conformance"
)

// TestObserveFindsEachProblem: Observe checks the responses of all tests.
func TestObserveFindsEachProblem(t *testing.T) {
	t.Parallel()

	detailed, err := status.New(codes.Internal, "text").WithDetails(&errdetails.ErrorInfo{Reason: "r"})
	require.NoError(t, err)

	volume := func(v *csi.Volume) *csi.CreateVolumeResponse { return &csi.CreateVolumeResponse{Volume: v} }

	for name, test := range map[string]struct {
		request, answer any
		err             error
		want            string
	}{
		"sound":              {nil, volume(&csi.Volume{VolumeId: "v", CapacityBytes: 1}), nil, ""},
		"sound error":        {nil, volume(nil), status.Error(codes.NotFound, "text"), ""},
		"no volume":          {nil, volume(nil), nil, "CreateVolumeResponse.volume is REQUIRED"},
		"no volume_id":       {nil, volume(&csi.Volume{}), nil, "volume.volume_id is REQUIRED"},
		"negative capacity":  {nil, volume(&csi.Volume{VolumeId: "v", CapacityBytes: -1}), nil, "capacity_bytes is -1"},
		"long string":        {nil, volume(&csi.Volume{VolumeId: strings.Repeat("v", 129)}), nil, "has 129 bytes"},
		"longest string":     {nil, volume(&csi.Volume{VolumeId: strings.Repeat("v", 128)}), nil, ""},
		"control character":  {nil, volume(&csi.Volume{VolumeId: "v\x01"}), nil, "control character"},
		"large map":          {nil, volume(&csi.Volume{VolumeId: "v", VolumeContext: map[string]string{"k": strings.Repeat("x", 4096)}}), nil, "has 4097 bytes"},
		"node id":            {nil, &csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", 256)}, nil, ""},
		"long node id":       {nil, &csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", 257)}, nil, "has 257 bytes"},
		"snapshot, no time":  {nil, &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "v"}}, nil, "creation_time is REQUIRED"},
		"sound snapshot":     {nil, &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "v", CreationTime: timestamppb.Now()}}, nil, ""},
		"usage without unit": {nil, &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: 1}}}, nil, "usage[0].unit is REQUIRED"},
		"too many entries": {
			&csi.ListVolumesRequest{MaxEntries: 1},
			&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: "a"}}, {Volume: &csi.Volume{VolumeId: "b"}}}},
			nil, "2 entries, max_entries is 1",
		},
		"token of nothing":   {&csi.ListVolumesRequest{}, &csi.ListVolumesResponse{NextToken: "x"}, nil, "next_token without an entry"},
		"details":            {nil, volume(nil), detailed.Err(), "status.details has 1 entries"},
		"error, no message":  {nil, volume(nil), status.Error(codes.Internal, ""), "no message"},
		"another's response": {nil, &timestamppb.Timestamp{Seconds: -1}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			found := strings.Join(conformance.Problems(test.request, test.answer, test.err), "; ")
			if test.want == "" {
				require.Empty(t, found, "want: the response keeps all rules")
			} else {
				require.Contains(t, found, test.want)
			}
		})
	}
}
