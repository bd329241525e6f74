package calls_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRecorder(t *testing.T, config calls.Config) *calls.Recorder {
	t.Helper()

	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}

	recorder, err := calls.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, recorder.Close()) })

	return recorder
}

// record records a call that has ended.
func record(ctx context.Context, r *calls.Recorder, number uint64, method string, request, response proto.Message, err error) {
	recording := r.Begin(ctx, number, method)
	recording.Request(request)
	recording.End(response, err)
}

func list(t *testing.T, r *calls.Recorder, filter calls.Filter) []*calls.Call {
	t.Helper()

	found, err := r.List(t.Context(), filter)
	require.NoError(t, err)

	return found
}

func TestCallIsRecordedCompletely(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	ctx, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), metadata.MD{
		"user-agent": {"test"}, "authorization": {"Bearer hunter2"}, "grpc-trace-bin": {"\xff\x00"},
		"x-session": {"hunter2"}, "jwt": {"hunter2"}, "auth-bin": {"hunter2"}, "x-request-id": {"7"},
	}), time.Minute)

	defer cancel()

	record(ctx, r, 7, csi.Controller_CreateVolume_FullMethodName,
		&csi.CreateVolumeRequest{Name: "data", Secrets: map[string]string{"key": "hunter2"}},
		&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v1"}}, nil)
	record(ctx, r, 8, csi.Node_NodePublishVolume_FullMethodName,
		&csi.NodePublishVolumeRequest{
			VolumeId:      "v1",
			VolumeContext: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "hunter2", "pool": "default"},
			VolumeCapability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: "ext4", MountFlags: []string{"password=hunter2"},
			}}},
		}, nil, status.Error(codes.NotFound, "no volume v1"))

	found := list(t, r, calls.Filter{})
	require.Len(t, found, 2, "want: both calls are recorded")

	made := found[0]
	require.Equal(t, uint64(7), made.Number, "want: the record has the number of the call")
	require.Equal(t, "OK", made.Code)
	require.Equal(t, []string{"data", "v1"}, made.Objects)
	require.InDelta(t, 60, made.Timeout, 1, "want: the record has the timeout of the call")
	require.WithinDuration(t, time.Now().Add(time.Minute), *made.Deadline, 10*time.Second)
	require.JSONEq(t, `{"name":"data","secrets":{"key":"***stripped***"}}`, string(made.Request))
	require.JSONEq(t, `{"volume":{"volume_id":"v1"}}`, string(made.Response))
	require.Equal(t, map[string][]string{
		"user-agent": {"test"}, "authorization": {"***stripped***"}, "grpc-trace-bin": {"/wA="},
		"x-session": {"***stripped***"}, "jwt": {"***stripped***"}, "auth-bin": {"***stripped***"}, "x-request-id": {"7"},
	}, made.Metadata)

	failed := found[1]
	require.Equal(t, "NOT_FOUND", failed.Code)
	require.Equal(t, "no volume v1", failed.Message)
	require.Empty(t, failed.Response, "want: a failed call has no response")

	encoded, err := json.Marshal(found)
	require.NoError(t, err)
	require.NotContains(t, string(encoded), "hunter2")
	require.Contains(t, string(failed.Request), "ext4")
	require.Contains(t, string(failed.Request), "default")
}

func TestSecretsAreRecordedOnRequest(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{KeepSecrets: true})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"authorization": {"Bearer hunter2"}})
	record(ctx, r, 1, csi.Controller_DeleteVolume_FullMethodName,
		&csi.DeleteVolumeRequest{VolumeId: "v1", Secrets: map[string]string{"key": "hunter2"}}, &csi.DeleteVolumeResponse{}, nil)

	found := list(t, r, calls.Filter{})
	require.JSONEq(t, `{"volume_id":"v1","secrets":{"key":"hunter2"}}`, string(found[0].Request))
	require.Equal(t, []string{"Bearer hunter2"}, found[0].Metadata["authorization"])
}

func TestFiltersSelectCalls(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	ctx := t.Context()

	record(ctx, r, 1, csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "data"},
		&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v1"}}, nil)
	record(ctx, r, 2, csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "v1"}, &csi.NodeStageVolumeResponse{}, nil)
	record(ctx, r, 3, csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "v2"}, nil, status.Error(codes.NotFound, "none"))

	before := time.Now()

	record(ctx, r, 4, csi.Controller_CreateSnapshot_FullMethodName, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v1"},
		&csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s1"}}, nil)

	for name, test := range map[string]struct {
		filter calls.Filter
		want   []uint64
	}{
		"none":               {calls.Filter{}, []uint64{1, 2, 3, 4}},
		"method":             {calls.Filter{Method: "NodeStageVolume"}, []uint64{2, 3}},
		"glob":               {calls.Filter{Method: "Create*"}, []uint64{1, 4}},
		"full name":          {calls.Filter{Method: "/csi.v1.Node/*"}, []uint64{2, 3}},
		"code":               {calls.Filter{Code: "NOT_FOUND"}, []uint64{3}},
		"code of Go":         {calls.Filter{Code: "NotFound"}, []uint64{3}},
		"id":                 {calls.Filter{Object: "v1"}, []uint64{1, 2, 4}},
		"name":               {calls.Filter{Object: "data"}, []uint64{1, 2, 4}},
		"name, method":       {calls.Filter{Object: "data", Method: "NodeStageVolume"}, []uint64{2}},
		"snapshot":           {calls.Filter{Object: "s1"}, []uint64{4}},
		"since call":         {calls.Filter{SinceCall: 2}, []uint64{3, 4}},
		"since":              {calls.Filter{Since: &before}, []uint64{4}},
		"jq":                 {calls.Filter{JQ: `.request.volume_id == "v1"`}, []uint64{2}},
		"jq, fails for some": {calls.Filter{JQ: `.request.name | startswith("d")`}, []uint64{1}},
		"nothing":            {calls.Filter{Object: "v3"}, nil},
		"other service":      {calls.Filter{Method: "/csi.v1.Identity/*"}, nil},
	} {
		var got []uint64
		for _, call := range list(t, r, test.filter) {
			got = append(got, call.Number)
		}

		require.Equal(t, test.want, got, name)
	}

	for _, bad := range []calls.Filter{{Method: "["}, {Code: "NOT_THERE"}} {
		_, err := r.List(t.Context(), bad)
		require.ErrorIs(t, err, calls.ErrFilter)
	}

	require.Equal(t, []calls.Count{
		{"CreateSnapshot", "OK", 1}, {"CreateVolume", "OK", 1}, {"NodeStageVolume", "NOT_FOUND", 1}, {"NodeStageVolume", "OK", 1},
	}, r.Counts())

	_, err := r.List(ctx, calls.Filter{JQ: ".code[]"})
	errtext.Require(t, err, "call 1", "want: a program that fails for each call is a mistake")

	r.Clear()
	require.Empty(t, list(t, r, calls.Filter{}), "want: Clear removes all calls")
	require.Empty(t, r.Counts(), "want: Clear removes all counts")
}

// TestANameFindsTheLaterCalls, which have only the id, for each kind of object that has a name. The
// calls of the source, of a member and of a later object with that name are not those of the id.
func TestANameFindsTheLaterCalls(t *testing.T) {
	t.Parallel()

	for _, most := range []int{0, 256} {
		r := newRecorder(t, calls.Config{MaxBytes: most})
		add := func(number uint64, method string, request, response proto.Message) {
			record(t.Context(), r, number, method, request, response, nil)
		}

		for at, id := range []string{"v1", "v2"} {
			add(uint64(10*at+1), csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "data"},
				&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id}})
			add(uint64(10*at+2), csi.Controller_DeleteVolume_FullMethodName, &csi.DeleteVolumeRequest{VolumeId: id}, &csi.DeleteVolumeResponse{})
		}

		add(21, csi.Controller_CreateSnapshot_FullMethodName, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "v1"},
			&csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s1", SourceVolumeId: "v1"}})
		add(22, csi.Controller_DeleteSnapshot_FullMethodName, &csi.DeleteSnapshotRequest{SnapshotId: "s1"}, &csi.DeleteSnapshotResponse{})

		add(31, csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName,
			&csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{"v2"}},
			&csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{
				GroupSnapshotId: "g1", Snapshots: []*csi.Snapshot{{SnapshotId: "s2", SourceVolumeId: "v2"}},
			}})
		add(32, csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g1"}, &csi.DeleteVolumeGroupSnapshotResponse{})

		for object, want := range map[string][]uint64{
			"data": {1, 2, 11, 12, 21, 31}, "snap": {21, 22}, "group": {31, 32}, "v1": {1, 2, 11, 21}, "s1": {21, 22}, "g1": {31, 32},
		} {
			var got []uint64
			for _, call := range list(t, r, calls.Filter{Object: object}) {
				got = append(got, call.Number)
			}

			require.Equal(t, want, got, "calls of %s with at most %d bytes", object, most)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()

	const maxBytes = 64 << 10

	r := newRecorder(t, calls.Config{MaxCalls: 10, MaxBytes: maxBytes})

	for i := range uint64(25) {
		record(t.Context(), r, i+1, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
	}

	found := list(t, r, calls.Filter{})
	require.Len(t, found, 10, "want: the ring keeps the newest ten calls")
	require.Equal(t, uint64(16), found[0].Number, "want: the oldest calls are dropped")
	require.Equal(t, uint64(25), r.Counts()[0].Count, "want: the counts include dropped calls")

	// Ten calls of 10 KiB are more than the bytes.
	for i := range uint64(10) {
		record(t.Context(), r, 100+i, csi.Controller_DeleteVolume_FullMethodName,
			&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("v", 5<<10)}, &csi.DeleteVolumeResponse{}, nil)
	}

	found = list(t, r, calls.Filter{})
	require.Less(t, len(found), 10, "want: large calls leave memory for fewer")
	require.Greater(t, len(found), 3, "want: several large calls are kept")
	require.Equal(t, uint64(109), found[len(found)-1].Number, "want: the newest call is kept")

	// One that is too large for the others stays in order, without its messages.
	record(t.Context(), r, 200, csi.Controller_DeleteVolume_FullMethodName,
		&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("v", maxBytes)}, &csi.DeleteVolumeResponse{}, nil)

	found = list(t, r, calls.Filter{SinceCall: 199})
	require.Len(t, found, 1, "want: a call that is too large is recorded")
	require.Empty(t, found[0].Request, "want: the request that is too large is omitted")
	require.Equal(t, 2, found[0].Omitted, "want: request and response are counted as omitted")
	require.Greater(t, len(list(t, r, calls.Filter{})), 3, "want: one large call does not drop all others")
}

func TestMessagesOfAStreamAreLimited(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	recording := r.Begin(t.Context(), 1, csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName)
	recording.Request(&csi.GetMetadataAllocatedRequest{SnapshotId: "s1"})

	for range calls.MaxMessages + 5 {
		recording.Message(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: 1})
	}

	recording.End(nil, status.Error(codes.Internal, "broken"))

	found := list(t, r, calls.Filter{Object: "s1"})
	require.Len(t, found, 1, "want: the stream is recorded as one call")
	require.Len(t, found[0].Messages, calls.MaxMessages, "want: the messages are limited")
	require.Equal(t, 5, found[0].Omitted, "want: the messages over the limit are counted")
	require.JSONEq(t, `{"volume_capacity_bytes":"1"}`, string(found[0].Messages[0]))
}

func TestCancelledCallIsMarked(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	recording := r.Begin(ctx, 1, csi.Identity_Probe_FullMethodName)

	cancel()
	recording.End(&csi.ProbeResponse{}, nil)
	require.True(t, list(t, r, calls.Filter{})[0].CallerGone, "want: the record says that the caller has left")
}

func TestFileHasALineForEachCall(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "calls.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("{\"call\":0}\n"), 0o600))

	r, err := calls.New(calls.Config{File: path, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)

	for i := range uint64(100) {
		record(t.Context(), r, i+1, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
	}

	require.NoError(t, r.Close())
	require.Zero(t, r.Lost(), "want: no line of the file is lost")

	// A call that ends after the close is lost, not fatal.
	record(t.Context(), r, 200, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)

	text, err := os.ReadFile(path)
	require.NoError(t, err)

	next := uint64(0)

	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); next++ {
		var call calls.Call

		require.NoError(t, json.Unmarshal(lines.Bytes(), &call))
		require.Equal(t, next, call.Number, "want: the lines are in the order of the calls")
	}

	require.Equal(t, uint64(101), next, "want: the file has all 100 calls")
}

func TestUnopenableFileFails(t *testing.T) {
	t.Parallel()

	_, err := calls.New(calls.Config{File: filepath.Join(t.TempDir(), "none", "calls"), Log: slog.New(slog.DiscardHandler)})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestFileIsPrivate: no file of another user or program gets the calls, and no other user
// reads them.
func TestFileIsPrivate(t *testing.T) {
	t.Parallel()

	open := func(path string) error {
		r, err := calls.New(calls.Config{File: path, Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = r.Close()
		}

		return err
	}

	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte("other"), 0o600))
	require.NoError(t, os.Symlink(other, filepath.Join(dir, "link")))
	require.ErrorIs(t, open(filepath.Join(dir, "link")), calls.ErrFile)
	require.NoError(t, os.Symlink(filepath.Join(dir, "new"), filepath.Join(dir, "dangling")))
	require.ErrorIs(t, open(filepath.Join(dir, "dangling")), calls.ErrFile)
	require.NoFileExists(t, filepath.Join(dir, "new"))
	require.NoError(t, os.Link(other, filepath.Join(dir, "hard")))
	require.ErrorIs(t, open(filepath.Join(dir, "hard")), calls.ErrFile)
	require.Error(t, open(dir), "want: a directory is refused as the file")

	if os.Geteuid() == 0 {
		foreign := filepath.Join(dir, "foreign")
		require.NoError(t, os.WriteFile(foreign, nil, 0o600))
		require.NoError(t, os.Chown(foreign, 65534, 65534))
		errtext.Require(t, open(foreign), "belongs to user 65534")
	}

	readable := filepath.Join(dir, "readable")
	require.NoError(t, os.WriteFile(readable, []byte("before\n"), 0o600))
	require.NoError(t, os.Chmod(readable, 0o666))
	require.NoError(t, open(readable))

	info, err := os.Stat(readable)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode(), "want: the file is for its owner only")

	kept, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "other", string(kept))
}

// TestFullDiskFailsNoCall: /dev/full answers ENOSPC.
func TestFullDiskFailsNoCall(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer

	r, err := calls.New(calls.Config{File: "/dev/full", Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)

	for i := range uint64(3) {
		record(t.Context(), r, i+1, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
	}

	require.Len(t, list(t, r, calls.Filter{}), 3, "want: the calls are recorded though the disk is full")
	require.NoError(t, r.Close())
	require.Equal(t, uint64(3), r.Lost(), "want: the lost lines are counted")
	require.Equal(t, 1, strings.Count(log.String(), "cannot write to the call log"), log.String())
	require.Contains(t, log.String(), "no space left on device")
}

func ExampleFilter() {
	encoded, err := json.Marshal(calls.Filter{Method: "Node*", Object: "data"})
	fmt.Println(string(encoded), err)
	// Output: {"method":"Node*","object":"data"} <nil>
}
