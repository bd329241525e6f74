package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// guardOf returns an open guard that logs JSON from the level on.
func guardOf(t *testing.T, level slog.Level, disabled ...string) (*guard, *bytes.Buffer) {
	t.Helper()

	capabilities, err := capability.Without(disabled...)
	require.NoError(t, err)

	var text bytes.Buffer

	log := slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: level}))
	measured, _ := newMetrics("csi.example.org", "v0", "")
	g := &guard{
		log: log, metrics: measured, durations: callDurations(), gate: newGate(), lists: newListLimiter(), codec: newCodec(log),
		capabilities: capabilities,
	}
	g.gate.open()

	return g, &text
}

// TestTheLineOfACall compares all of the line that a call's end logs.
func TestTheLineOfACall(t *testing.T) {
	t.Parallel()

	request := &csi.CreateVolumeRequest{Name: "n"}
	response := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}}

	for name, test := range map[string]struct {
		level  slog.Level
		method string
		done   exchange
		want   map[string]any
	}{
		"success": {
			LevelCalls, csi.Controller_CreateVolume_FullMethodName,
			exchange{request, response, nil},
			map[string]any{"code": "OK", "name": "n", "volume": "v"},
		},
		"success, with messages": {
			LevelMessages, csi.Controller_CreateVolume_FullMethodName,
			exchange{request, response, nil},
			map[string]any{"code": "OK", "name": "n", "volume": "v", "message": `{"volume":{"volume_id":"v"}}`},
		},
		"a stream, with messages": {
			LevelMessages, csi.SnapshotMetadata_GetMetadataDelta_FullMethodName,
			exchange{&csi.GetMetadataDeltaRequest{BaseSnapshotId: "s"}, nil, nil},
			map[string]any{"code": "OK", "base": "s"},
		},
		"a failure": {
			slog.LevelInfo, csi.Controller_DeleteVolume_FullMethodName,
			exchange{&csi.DeleteVolumeRequest{VolumeId: "v"}, nil, status.Error(codes.FailedPrecondition, "it is in use")},
			map[string]any{
				"code": "FailedPrecondition", "volume": "v", "error": "it is in use",
				"spec": specRows(csi.Controller_DeleteVolume_FullMethodName, codes.FailedPrecondition),
			},
		},
		"a failure that no row has": {
			slog.LevelInfo, "/touchstone.v1.Health/Check",
			exchange{nil, nil, status.Error(codes.DataLoss, "it is lost")},
			map[string]any{"code": "DataLoss", "error": "it is lost"},
		},
		"a level that is not logged": {LevelCalls + 1, csi.Controller_CreateVolume_FullMethodName, exchange{request, response, nil}, nil},
		"a read at the level of calls": {
			LevelCalls, csi.Controller_ListVolumes_FullMethodName, exchange{&csi.ListVolumesRequest{}, &csi.ListVolumesResponse{}, nil}, nil,
		},
	} {
		g, text := guardOf(t, test.level)
		g.finish(t.Context(), test.method, test.done, time.Second)

		if test.want == nil {
			require.Empty(t, text.String(), "want: no line for %s", name)

			continue
		}

		got := map[string]any{}
		require.NoError(t, json.Unmarshal(text.Bytes(), &got), "want: one line for %s", name)
		require.EqualValues(t, time.Second, got["took"], "want: the duration of %s", name)

		for _, each := range []string{"time", "level", "msg", "took"} {
			delete(got, each)
		}

		require.Equal(t, test.want, got, "want: the attributes of the line for %s", name)
	}

	require.NotEmpty(t, specRows(csi.Controller_DeleteVolume_FullMethodName, codes.FailedPrecondition), "want: DeleteVolume has a row for a volume in use")
	require.Equal(t, errorRows[""][codes.Aborted], specRows("/other.Service/Do", codes.Aborted),
		"want: the rows of all calls for one without its own")
}

// TestWhichCallsAreAdmitted: what is refused reaches no handler, and the handler's error becomes a status.
func TestWhichCallsAreAdmitted(t *testing.T) {
	t.Parallel()

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	undecoded := context.WithValue(t.Context(), undecodedKey{}, status.Error(codes.InvalidArgument, "it cannot be read"))

	for name, test := range map[string]struct {
		ctx      context.Context //nolint:containedctx // it is that of the call
		shut     bool
		disabled []string
		method   string
		request  any
		err      error
		want     codes.Code
		handled  bool
		// stream: the same is so for a stream.
		stream bool
	}{
		"a call":              {handled: true, stream: true},
		"a failure":           {err: errdefs.New(errdefs.ErrNotFound, "missing"), want: codes.NotFound, handled: true, stream: true},
		"a defect":            {err: errors.New("unknown"), want: codes.Internal, handled: true, stream: true},
		"an unreadable one":   {ctx: undecoded, want: codes.InvalidArgument},
		"a disabled one":      {disabled: []string{"CREATE_DELETE_VOLUME"}, want: codes.Unimplemented, stream: true},
		"too long a field":    {request: &csi.DeleteVolumeRequest{VolumeId: string(make([]byte, maxString+1))}, want: codes.InvalidArgument},
		"a call in a drain":   {shut: true, want: codes.Unavailable, stream: true},
		"a list without time": {ctx: ended, method: csi.Controller_ListVolumes_FullMethodName, request: &csi.ListVolumesRequest{}, want: codes.Canceled},
	} {
		g, _ := guardOf(t, slog.LevelError, test.disabled...)
		// All entries of lists are taken.
		require.True(t, g.lists.entries.TryAcquire(maxListEntries), "want: the entries are free at first")

		if test.shut {
			g.gate.shut()
		}

		if test.ctx == nil {
			test.ctx = t.Context()
		}

		if test.method == "" {
			test.method = csi.Controller_DeleteVolume_FullMethodName
		}

		if test.request == nil {
			test.request = &csi.DeleteVolumeRequest{VolumeId: "v"}
		}

		handled := false
		response, err := g.admit(test.ctx, test.request, &grpc.UnaryServerInfo{FullMethod: test.method}, func(context.Context, any) (any, error) {
			handled = true

			return "the response", test.err
		})
		rpccode.Require(t, err, test.want, "%s", name)
		require.Equal(t, test.handled, handled, "want: %s is handled or not", name)
		require.Equal(t, test.handled, response == "the response", "want: %s has the handler's response or none", name)

		if !test.stream {
			continue
		}

		handled = false
		err = g.admitStream(nil, &idleStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: test.method}, func(any, grpc.ServerStream) error {
			handled = true

			return test.err
		})
		rpccode.Require(t, err, test.want, "%s, as a stream", name)
		require.Equal(t, test.handled, handled, "want: a stream that is %s is handled or not", name)
	}
}

type idleStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // it is that of the stream
}

func (s *idleStream) Context() context.Context { return s.ctx }

// TestEntriesOfListsAreFreeWithTheResponse where a rule may hold that, and with the call elsewhere.
func TestEntriesOfListsAreFreeWithTheResponse(t *testing.T) {
	t.Parallel()

	for holds, want := range map[bool]bool{true: true, false: false} {
		g, _ := guardOf(t, slog.LevelError)
		g.lab.holdsResponses = holds

		ctx, cancel := context.WithCancel(t.Context())
		_, err := g.admit(ctx, &csi.ListVolumesRequest{}, &grpc.UnaryServerInfo{FullMethod: csi.Controller_ListVolumes_FullMethodName},
			func(context.Context, any) (any, error) {
				require.False(t, g.lists.entries.TryAcquire(maxListEntries), "want: the entries of a list are taken while it is handled")

				return &csi.ListVolumesResponse{}, nil
			})
		require.NoError(t, err)
		require.Equal(t, want, g.lists.entries.TryAcquire(maxListEntries), "want: the entries are free after the handler where responses are held: %v", holds)
		cancel()
	}
}

// TestACallIsCountedWithItsCode, and has a number of its own.
func TestACallIsCountedWithItsCode(t *testing.T) {
	t.Parallel()

	g, text := guardOf(t, LevelMessages)
	info := &grpc.UnaryServerInfo{FullMethod: csi.Controller_DeleteVolume_FullMethodName}

	var numbers []uint64

	for _, err := range []error{nil, status.Error(codes.NotFound, "none"), status.Error(codes.NotFound, "none")} {
		_, got := g.observe(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}, info, func(ctx context.Context, _ any) (any, error) {
			id, _ := ctx.Value(callKey{}).(call)
			numbers = append(numbers, id.number)

			require.Equal(t, info.FullMethod, id.method, "want: the method of the call in its context")

			return &csi.DeleteVolumeResponse{}, err
		})
		require.Equal(t, err, got, "want: the error of the handler")
	}

	require.Equal(t, []uint64{1, 2, 3}, numbers, "want: the numbers of the calls")
	require.Equal(t, 3, bytes.Count(text.Bytes(), []byte("call begins")), "want: the begin of each call is logged with messages")

	counts := func() map[string]uint64 {
		registry, found := prometheus.NewRegistry(), map[string]uint64{}
		registry.MustRegister(g.durations)

		families, err := registry.Gather()
		require.NoError(t, err)

		for _, metric := range families[0].GetMetric() {
			found[metric.GetLabel()[1].GetValue()+" "+metric.GetLabel()[0].GetValue()] = metric.GetHistogram().GetSampleCount()
		}

		return found
	}
	require.Equal(t, map[string]uint64{"DeleteVolume OK": 1, "DeleteVolume NotFound": 2}, counts(), "want: calls by method and code")

	err := g.observeStream(nil, &idleStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: csi.SnapshotMetadata_GetMetadataDelta_FullMethodName},
		func(_ any, stream grpc.ServerStream) error {
			id, _ := stream.Context().Value(callKey{}).(call)
			require.Equal(t, uint64(4), id.number, "want: the number of the stream in its context")

			return status.Error(codes.Aborted, "changed")
		})
	rpccode.Require(t, err, codes.Aborted, "the stream")
	require.Equal(t, uint64(1), counts()["GetMetadataDelta Aborted"], "want: the stream is counted")
}

// TestAPanicOfACallIsInternal, and names the call's number only.
func TestAPanicOfACallIsInternal(t *testing.T) {
	t.Parallel()

	g, text := guardOf(t, slog.LevelError)
	err := g.recovered(context.WithValue(t.Context(), callKey{}, call{number: 7}), errors.New("a secret"))
	rpccode.Require(t, err, codes.Internal, "a panic")
	require.Equal(t, "defect of the driver; see call 7 in its log", status.Convert(err).Message(), "want: the number of the call alone")
	require.Contains(t, text.String(), "a secret", "want: the panic is logged")
	require.Contains(t, text.String(), "goroutine", "want: the stack is logged")
}
