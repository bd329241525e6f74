package calls

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// sizedCall returns a call, and the bytes of its encoding.
func sizedCall(t *testing.T, number uint64) (*Call, int) {
	t.Helper()

	call := &Call{
		Number: number, Method: csi.SnapshotMetadata_GetMetadataDelta_FullMethodName, Started: time.Unix(0, 0).UTC(), Code: "OK",
		Request: json.RawMessage(`{}`), Messages: []json.RawMessage{json.RawMessage(`{}`), json.RawMessage(`{}`)}, Omitted: 3,
	}

	line, err := json.Marshal(call)
	require.NoError(t, err)

	return call, len(line)
}

// TestALargeCallIsKeptWithoutItsMessages: one that is larger than a quarter of the memory.
func TestALargeCallIsKeptWithoutItsMessages(t *testing.T) {
	t.Parallel()

	call, size := sizedCall(t, 1)
	short := *call
	short.Request, short.Messages, short.Omitted = nil, nil, 7

	for bytes, want := range map[int]*Call{4 * size: call, 4*size - 1: &short} {
		r, err := New(Config{MaxBytes: bytes, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		r.add(call)
		require.Equal(t, want, r.kept[0].Call, "want: a call of %d bytes in a memory of %d", size, bytes)
		require.Equal(t, 3, call.Omitted, "want: the call itself is left as it was")
	}
}

// TestTheOldestCallsAreForgotten: as many calls and bytes are kept as the limits are.
func TestTheOldestCallsAreForgotten(t *testing.T) {
	t.Parallel()

	_, size := sizedCall(t, 1)

	for name, test := range map[string]struct {
		config Config
		want   []uint64
	}{
		"as many as may be kept":   {Config{MaxCalls: 6}, []uint64{1, 2, 3, 4, 5, 6}},
		"one more than that":       {Config{MaxCalls: 5}, []uint64{2, 3, 4, 5, 6}},
		"as many bytes as allowed": {Config{MaxBytes: 6 * size}, []uint64{1, 2, 3, 4, 5, 6}},
		"one byte more than that":  {Config{MaxBytes: 6*size - 1}, []uint64{2, 3, 4, 5, 6}},
		"two calls more than that": {Config{MaxBytes: 5*size - 1}, []uint64{3, 4, 5, 6}},
	} {
		test.config.Log = slog.New(slog.DiscardHandler)
		r, err := New(test.config)
		require.NoError(t, err)

		for number := range uint64(6) {
			call, _ := sizedCall(t, number+1)
			r.add(call)
		}

		numbers := func(from uint64) (found []uint64, next, missed uint64) {
			calls, next, missed, _ := r.from(from)
			for _, each := range calls {
				found = append(found, each.Number)
			}

			return found, next, missed
		}
		forgotten := uint64(6 - len(test.want))

		found, next, missed := numbers(0)
		require.Equal(t, test.want, found, "want: the newest calls are kept: %s", name)
		require.Equal(t, []uint64{6, forgotten}, []uint64{next, missed}, "want: the next position, and the calls that are gone: %s", name)
		require.Equal(t, uint64(6), r.end(), "want: the position of the next call: %s", name)

		found, _, missed = numbers(forgotten)
		require.Equal(t, test.want, found, "want: all kept calls from the first of them on: %s", name)
		require.Zero(t, missed, "want: none is missed from the first kept call on: %s", name)

		found, _, _ = numbers(5)
		require.Equal(t, []uint64{6}, found, "want: the calls from a position on: %s", name)

		found, next, _ = numbers(9)
		require.Empty(t, found, "want: no call behind the last: %s", name)
		require.Equal(t, uint64(6), next, "want: the next position: %s", name)
		require.Equal(t, []Count{{"GetMetadataDelta", "OK", 6}}, r.Counts(), "want: all calls are counted: %s", name)

		r.Clear()

		found, next, _ = numbers(0)
		require.Empty(t, found, "want: no call after Clear: %s", name)
		require.Equal(t, uint64(6), next, "want: the position stays after Clear: %s", name)
		require.Equal(t, []any{0, []Count{}}, []any{r.bytes, r.Counts()}, "want: Clear frees the memory, and ends the counts: %s", name)
	}
}

// TestLinesThatDoNotFitTheQueueAreCounted: a pipe that is not read takes some lines, and the queue some more. No call waits.
func TestLinesThatDoNotFitTheQueueAreCounted(t *testing.T) {
	t.Parallel()

	const written = 2*queuedLines + 1000

	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))

	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)

	f, err := openFile(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	for range written {
		f.write([]byte(strings.Repeat("x", 99) + "\n"))
	}

	lost := f.lost.Load()
	require.Positive(t, lost, "want: lines are lost while the pipe is full")
	require.LessOrEqual(t, lost, uint64(written-queuedLines), "want: the queue takes lines")

	read := make(chan int, 1)

	go func() {
		lines, buffer := 0, make([]byte, 64<<10)

		for {
			n, err := reader.Read(buffer)
			lines += strings.Count(string(buffer[:n]), "\n")

			if err != nil {
				read <- lines

				return
			}
		}
	}()

	require.NoError(t, f.close())
	require.Equal(t, written, <-read+int(f.lost.Load()), "want: each line is read or counted as lost")
	require.Equal(t, lost, f.lost.Load(), "want: no queued line is lost once the pipe is read")
	require.NoError(t, reader.Close())
}

func TestCodesAreKnownInEachSpelling(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]bool{"NOT_FOUND": true, "NotFound": true, "notfound": true, "OK": true, "NOT_FOUN": false, "99": false} {
		require.Equal(t, want, knownCode(text), "want: %q is a code or not", text)
	}
}

// TestEachObjectOfAMessageIsNamedOnce, that which was made too.
func TestEachObjectOfAMessageIsNamedOnce(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		before  []string
		message any
		want    []string
	}{
		{nil, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"}, []string{"s", "v"}},
		{[]string{"s", "v"}, &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "1", SourceVolumeId: "v"}}, []string{"s", "v", "1"}},
		{nil, &csi.CreateVolumeResponse{}, nil},
		{nil, &csi.CreateVolumeRequest{Name: "v", VolumeContentSource: csiclient.FromSnapshot("s")}, []string{"v", "s"}},
		{nil, &csi.CreateVolumeRequest{Name: "v", VolumeContentSource: csiclient.FromVolume("w")}, []string{"v", "w"}},
		{nil, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}}, []string{"v"}},
		{nil, &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: "g"}}, []string{"g"}},
		{nil, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"a", "b", "a"}}, []string{"g", "a", "b"}},
		{[]string{"x"}, "no message", []string{"x"}},
		{nil, &csi.ListVolumesRequest{StartingToken: "t"}, nil},
	} {
		require.Equal(t, test.want, objects(test.before, test.message), "want: the objects of %T %v", test.message, test.message)
	}

	require.Equal(t, []string{"a", "b\uFFFD"}, appendNew([]string{"a"}, "b\xff"), "want: a text that is not UTF-8 is made readable")
}

// TestTheInputOfACallHasNumbersAndDefaults, and what cannot be read as its text.
func TestTheInputOfACallHasNumbersAndDefaults(t *testing.T) {
	t.Parallel()

	input := func(call *Call) map[string]any {
		made, err := call.Input()
		require.NoError(t, err)

		fields, ok := made.(map[string]any)
		require.True(t, ok, "want: an object")

		return fields
	}

	volume := json.RawMessage(`{"volume":{"capacity_bytes":"5"}}`)
	fields := input(&Call{Method: csi.Controller_CreateVolume_FullMethodName, Request: json.RawMessage(`{"name":"n"}`), Response: volume})
	require.Equal(t, "n", fields["request"].(map[string]any)["name"], "want: the request")
	require.EqualValues(t, 5, fields["response"].(map[string]any)["volume"].(map[string]any)["capacity_bytes"], "want: a number in the response")

	fields = input(&Call{Method: csi.Controller_CreateVolume_FullMethodName})
	require.NotContains(t, fields, "request", "want: no request where none is recorded")
	require.NotContains(t, fields, "response", "want: no response where none is recorded")

	fields = input(&Call{Method: "/other.Service/CreateVolume", Response: volume})
	require.Equal(t, map[string]any{"volume": map[string]any{"capacity_bytes": "5"}}, fields["response"], "want: a message of an unknown service as it is")

	fields = input(&Call{Method: csi.Controller_CreateVolume_FullMethodName, Response: json.RawMessage(`{"volume":"none"}`)})
	require.Equal(t, any(`{"volume":"none"}`), fields["response"], "want: a message that cannot be read is its text")

	fields = input(&Call{
		Method: csi.SnapshotMetadata_GetMetadataDelta_FullMethodName, Messages: []json.RawMessage{json.RawMessage(`{"volume_capacity_bytes":"7"}`)},
	})
	require.EqualValues(t, 7, fields["messages"].([]any)[0].(map[string]any)["volume_capacity_bytes"], "want: a number in a message")
}
