package jq_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func request() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 10 << 30}, Parameters: map[string]string{"pool": "fast-1"},
		VolumeCapabilities: []*csi.VolumeCapability{
			{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}},
			{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}},
		},
	}
}

// TestPredicatesMatchRequests: its fields have the spec's names, numbers are numbers, enums are
// names.
func TestPredicatesMatchRequests(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]bool{
		`.capacity_range.required_bytes > 10*1024*1024*1024`:                     false,
		`.capacity_range.required_bytes >= 10*1024*1024*1024`:                    true,
		`.capacity_range.limit_bytes == 0`:                                       true,
		`.capacity_range == null`:                                                false,
		`.accessibility_requirements == null`:                                    true,
		`.volume_content_source.volume.volume_id == null`:                        true,
		`.name == "pvc-1"`:                                                       true,
		`.name != "pvc-1"`:                                                       false,
		`.name | startswith("pvc-")`:                                             true,
		`.name | test("^x")`:                                                     false,
		`.secrets.token == null`:                                                 true,
		`.secrets == {}`:                                                         true,
		`.parameters.pool == "fast-1"`:                                           true,
		`.parameters["other"] == null`:                                           true,
		`.volume_capabilities[0].access_mode.mode == "SINGLE_NODE_WRITER"`:       true,
		`.volume_capabilities[2].access_mode.mode`:                               false,
		`.volume_capabilities[].access_mode.mode == "MULTI_NODE_READER_ONLY"`:    true,
		`.volume_capabilities[].access_mode.mode == "MULTI_NODE_MULTI_WRITER"`:   false,
		`any(.volume_capabilities[]; .access_mode.mode == "SINGLE_NODE_WRITER")`: true,
		`select(.name == "other")`:                                               false,
		`.volume_capabilities | map(.access_mode.mode) | length == 2`:            true,
		`def large: .required_bytes > 1; .capacity_range | large`:                true,
		`.capacity_range as $range | $range.required_bytes == .name`:             false,
		`if .mutable_parameters == {} then .name == "pvc-1" else false end`:      true,
		`[.volume_capabilities[].mount.fs_type] | any(. == "xfs")`:               false,
		`reduce .volume_capabilities[] as $c (0; . + 1) | . == 2`:                true,
		`"\(.name)-\(.capacity_range.required_bytes)" == "pvc-1-10737418240"`:    true,
		`first(.volume_capabilities[] | select(.block)) // "none" | . == "none"`: true,
	} {
		program, err := jq.Parse(text)
		require.NoError(t, err, text)
		require.NoError(t, program.Check(request().ProtoReflect().Descriptor(), nil), text)

		holds, err := program.Holds(t.Context(), jq.FromMessage(request()))
		require.NoError(t, err, text)
		require.Equal(t, want, holds, text)
	}
}

// TestMistakesAreFound before a program runs.
func TestMistakesAreFound(t *testing.T) {
	t.Parallel()

	response := (&csi.ListVolumesResponse{}).ProtoReflect().Descriptor()

	for text, want := range map[string]string{
		`.volume_id`:                                      "ListVolumesResponse has no field volume_id",
		`.entries[].volume_id`:                            "Entry has no field volume_id",
		`.entries[0]["volume_id"]`:                        "Entry has no field volume_id",
		`.entries[1:][].volume_id`:                        "Entry has no field volume_id",
		`.entries.volume`:                                 "of a list",
		`.next_token.length`:                              "next_token is not a message",
		`.entries |= map(.volumes)`:                       "no field volumes",
		`.entries |= map(select(.volume.size > 1))`:       "no field size",
		`.entries[].volume.size *= 2`:                     "no field size",
		`del(.entries[].volume.context)`:                  "no field context",
		`del(.next_token, .token)`:                        "no field token",
		`if .token then . else . end`:                     "no field token",
		`.next_token = (.entries | first | .id)`:          "no field id",
		`.entries[0] as $e | $e.id`:                       "no field id",
		`{token}`:                                         "no field token",
		`[.entries[] | {id: .id}]`:                        "no field id",
		`"\(.token)"`:                                     "no field token",
		`try .token catch .`:                              "no field token",
		`-.token`:                                         "no field token",
		`any(.entries[]; .id)`:                            "no field id",
		`any(.entries[].volume.capacity_bytes; . == "1")`: "of type int64",
		`.next_token == 1`:                                "next_token is of type string",
		`.entries[].volume.capacity_bytes > "1"`:          "of type int64",
		`$request.names`:                                  "no field names",
		`$previous`:                                       "no value here",
		`.entries[].status.volume_condition`:              "no field volume_condition",
	} {
		program, err := jq.Parse(text, "$request", "$previous", "$hit")
		require.NoError(t, err, text)

		err = program.Check(response, jq.Types{"$request": request().ProtoReflect().Descriptor(), "$hit": nil})
		require.ErrorIs(t, err, jq.ErrProgram, text)
		errtext.Require(t, err, want, text)
	}

	modes := (&csi.VolumeCapability{}).ProtoReflect().Descriptor()
	program, err := jq.Parse(`.access_mode.mode == "READER"`)
	require.NoError(t, err)
	errtext.Require(t, program.Check(modes, nil), `"READER" is no value of Mode`)

	for text, want := range map[string]string{
		`.a |`: "unexpected EOF", "": "is empty", " \n": "is empty", ".a\n| b |\n": "line 2", `.a ==== 1`: "unexpected token", `many`: "many", `$x`: "$x", ".a\n| ]": "line 2",
		`import "x" as x; .`: "module", `input`: "input",
	} {
		_, err := jq.Parse(text)
		require.ErrorIs(t, err, jq.ErrProgram, text)
		errtext.Require(t, err, want, text)
	}
}

// TestFiltersChangeResponses in the ways of docs/faults.md.
func TestFiltersChangeResponses(t *testing.T) {
	t.Parallel()

	entry := func(id string) *csi.ListVolumesResponse_Entry {
		return &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id, CapacityBytes: 1 << 60, VolumeContext: map[string]string{"a": "b"}}}
	}
	list := &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{entry("1"), entry("2")}, NextToken: "t"}

	for text, change := range map[string]func(*csi.ListVolumesResponse){
		`.`:                                      func(*csi.ListVolumesResponse) {},
		`.entries |= .[:1]`:                      func(r *csi.ListVolumesResponse) { r.Entries = r.GetEntries()[:1] },
		`.entries += .entries`:                   func(r *csi.ListVolumesResponse) { r.Entries = append(r.GetEntries(), r.GetEntries()...) },
		`del(.entries[0])`:                       func(r *csi.ListVolumesResponse) { r.Entries = r.GetEntries()[1:] },
		`.entries[0].volume.capacity_bytes += 1`: func(r *csi.ListVolumesResponse) { r.GetEntries()[0].Volume.CapacityBytes++ },
		`del(.entries[].volume.volume_context)`: func(r *csi.ListVolumesResponse) {
			for _, each := range r.GetEntries() {
				each.Volume.VolumeContext = nil
			}
		},
		`.next_token = null`:                                func(r *csi.ListVolumesResponse) { r.NextToken = "" },
		`.next_token *= 3`:                                  func(r *csi.ListVolumesResponse) { r.NextToken = "ttt" },
		`.next_token += "-\($n)"`:                           func(r *csi.ListVolumesResponse) { r.NextToken = "t-7" },
		`.entries |= map(select(.volume.volume_id != "1"))`: func(r *csi.ListVolumesResponse) { r.Entries = r.GetEntries()[1:] },
	} {
		program, err := jq.Parse(text, "$n")
		require.NoError(t, err)

		output, err := program.Apply(t.Context(), jq.FromMessage(list), 7)
		require.NoError(t, err, text)

		got, want := &csi.ListVolumesResponse{}, proto.CloneOf(list)
		require.NoError(t, jq.ToMessage(output, got), text)
		change(want)
		require.True(t, proto.Equal(want, got), "%s: %v", text, got)
	}
}

// TestMessagesRoundTrip, with each kind of field.
func TestMessagesRoundTrip(t *testing.T) {
	t.Parallel()

	for _, message := range []proto.Message{
		request(), &csi.ProbeResponse{}, &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, &csi.ProbeResponse{Ready: wrapperspb.Bool(true)},
		&csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s", CreationTime: timestamppb.New(time.Unix(1, 5)), ReadyToUse: true}},
		&csi.GetMetadataAllocatedResponse{BlockMetadata: []*csi.BlockMetadata{{ByteOffset: 1, SizeBytes: 1<<63 - 1}}},
		&csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Status: 99, Reason: "<X>"}}}},
	} {
		got := message.ProtoReflect().New().Interface()
		require.NoError(t, jq.ToMessage(jq.FromMessage(message), got))
		require.True(t, proto.Equal(message, got), "%v: %v", message, got)
	}
}

func TestOutputsOfAnotherTypeFail(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		`{redy: true}`: "redy", `{ready: "soon"}`: "soon", `1`: "Probe", `., .`: "there are several", `empty`: "there is none", `error("x")`: "x",
		`.ready | keys`: "keys",
	} {
		program, err := jq.Parse(text)
		require.NoError(t, err)

		output, err := program.Apply(t.Context(), jq.FromMessage(&csi.ProbeResponse{}))
		if err == nil {
			err = jq.ToMessage(output, &csi.ProbeResponse{})
		}

		require.ErrorIs(t, err, jq.ErrProgram, text)
		errtext.Require(t, err, want, text)
	}
}

// TestProgramsEndWithTheirContext, or after a time.
func TestProgramsEndWithTheirContext(t *testing.T) {
	t.Parallel()

	program, err := jq.Parse(`last(range(infinite))`)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()

	_, err = program.Holds(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	_, err = program.Apply(t.Context(), nil)
	require.ErrorIs(t, err, jq.ErrLimit)
	require.ErrorIs(t, err, jq.ErrProgram)
}

func TestLinesOmitFalseOutputs(t *testing.T) {
	t.Parallel()

	program, err := jq.Parse(`.[] | ., (.a? // null)`)
	require.NoError(t, err)

	input, err := jq.FromJSON([]any{false, map[string]any{"a": int64(1<<62 + 1)}, "x"})
	require.NoError(t, err)

	lines, err := program.Lines(t.Context(), input)
	require.NoError(t, err)
	require.Equal(t, strings.Split(`{"a":4611686018427387905} 4611686018427387905 "x"`, " "), lines)
}

func BenchmarkPredicate(b *testing.B) {
	program, err := jq.Parse(`.capacity_range.required_bytes > 10*1024*1024*1024`)
	require.NoError(b, err)

	for b.Loop() {
		_, err := program.Holds(b.Context(), jq.FromMessage(request()))
		require.NoError(b, err)
	}
}

func BenchmarkPatch(b *testing.B) {
	program, err := jq.Parse(`.volume.capacity_bytes *= 2`)
	require.NoError(b, err)

	response := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", CapacityBytes: 1 << 30, VolumeContext: map[string]string{"a": "b"}}}

	for b.Loop() {
		output, err := program.Apply(b.Context(), jq.FromMessage(response))
		require.NoError(b, err)
		require.NoError(b, jq.ToMessage(output, &csi.CreateVolumeResponse{}))
	}
}
