package strict_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

// stream is a stream of one request.
type stream struct {
	grpc.ServerStream

	ctx     context.Context //nolint:containedctx // it is that of the stream
	request *csi.GetMetadataDeltaRequest
	err     error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(into any) error {
	if request, ok := into.(*csi.GetMetadataDeltaRequest); ok && s.request != nil {
		request.BaseSnapshotId, request.Secrets = s.request.GetBaseSnapshotId(), s.request.GetSecrets()
	}

	return s.err
}

var errEnded = errors.New("the stream has ended")

// intercepted is a monitor of interceptors, which number the calls 5.
func intercepted(t *testing.T, mode strict.Mode, disabled ...string) *strict.Monitor {
	t.Helper()

	capabilities, err := capability.Without(disabled...)
	require.NoError(t, err)

	monitor, err := strict.New(strict.Config{
		Mode: mode, NodeID: node, Capabilities: capabilities, Log: slog.New(slog.DiscardHandler), Number: func(context.Context) uint64 { return 5 },
	}, prometheus.NewRegistry())
	require.NoError(t, err)

	return monitor
}

func TestStreamsAreChecked(t *testing.T) {
	t.Parallel()

	bad := &csi.GetMetadataDeltaRequest{BaseSnapshotId: "s", Secrets: map[string]string{"": "x"}}

	for name, test := range map[string]struct {
		mode           strict.Mode
		method         string
		disabled       []string
		request        *csi.GetMetadataDeltaRequest
		received       error
		want           codes.Code
		begun, handled bool
		count          int
	}{
		"observed":           {mode: strict.Observe, request: bad, begun: true, handled: true, count: 1},
		"refused":            {mode: strict.Refuse, request: bad, want: codes.FailedPrecondition, begun: true, count: 1},
		"good":               {mode: strict.Refuse, begun: true, handled: true},
		"not received":       {mode: strict.Refuse, request: bad, received: errEnded, want: codes.Unknown, begun: true},
		"of another service": {mode: strict.Refuse, request: bad, method: "/other.Service/Do", begun: true, handled: true},
		"not advertised":     {mode: strict.Refuse, disabled: []string{"SNAPSHOT_METADATA_SERVICE"}, want: codes.FailedPrecondition, count: 1},
		"not advertised, observed": {
			mode: strict.Observe, disabled: []string{"SNAPSHOT_METADATA_SERVICE"}, begun: true, handled: true, count: 1,
		},
	} {
		monitor := intercepted(t, test.mode, test.disabled...)

		if test.method == "" {
			test.method = csi.SnapshotMetadata_GetMetadataDelta_FullMethodName
		}

		var begun, handled bool

		err := monitor.Stream(nil, &stream{ctx: t.Context(), request: test.request, err: test.received}, &grpc.StreamServerInfo{FullMethod: test.method},
			func(_ any, stream grpc.ServerStream) error {
				begun = true

				if err := stream.RecvMsg(&csi.GetMetadataDeltaRequest{}); err != nil {
					return err
				}

				handled = true

				return nil
			})
		require.Equal(t, test.want, status.Code(err), "want: the code of a stream that is %s", name)
		require.Equal(t, []bool{test.begun, test.handled}, []bool{begun, handled}, "want: the handler of a stream that is %s begins, and gets the request", name)
		require.Len(t, monitor.List(), test.count, "want: the violations of a stream that is %s", name)

		for _, each := range monitor.List() {
			require.EqualValues(t, 1, each.Count, "want: a stream that is %s violates it once", name)
		}
	}
}

// TestTheEndOfAStreamIsNoticed: what fails, or panics, counts as a failure, and an end after success does not.
func TestTheEndOfAStreamIsNoticed(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		handler grpc.StreamHandler
		want    int
	}{
		"success": {func(any, grpc.ServerStream) error { return nil }, 0},
		"failure": {func(any, grpc.ServerStream) error { return errFailed }, 1},
		"panic":   {func(any, grpc.ServerStream) error { panic("it fails") }, 1},
	} {
		monitor := intercepted(t, strict.Observe)

		for range 4 {
			func() {
				defer func() { _ = recover() }()

				_ = monitor.Stream(nil, &stream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: csi.SnapshotMetadata_GetMetadataDelta_FullMethodName},
					func(service any, stream grpc.ServerStream) error {
						_ = stream.RecvMsg(&csi.GetMetadataDeltaRequest{})
						_ = stream.RecvMsg(&csi.GetMetadataDeltaRequest{})

						return test.handler(service, stream)
					})
			}()
		}

		require.Len(t, monitor.List(), test.want, "want: streams that end with %s are retried without backoff or not", name)
	}
}

func TestCallsAreChecked(t *testing.T) {
	t.Parallel()

	bad := &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"": "x"}}

	for name, test := range map[string]struct {
		mode    strict.Mode
		method  string
		want    codes.Code
		handled bool
		count   int
	}{
		"observed":           {mode: strict.Observe, method: csi.Controller_DeleteVolume_FullMethodName, handled: true, count: 1},
		"refused":            {mode: strict.Refuse, method: csi.Controller_DeleteVolume_FullMethodName, want: codes.FailedPrecondition, count: 1},
		"of another service": {mode: strict.Refuse, method: "/other.Service/Do", handled: true},
	} {
		monitor, handled := intercepted(t, test.mode), false
		response, err := monitor.Unary(t.Context(), bad, &grpc.UnaryServerInfo{FullMethod: test.method}, func(context.Context, any) (any, error) {
			handled = true

			return "the response", nil
		})
		require.Equal(t, test.want, status.Code(err), "want: the code of a call that is %s", name)
		require.Equal(t, test.handled, handled, "want: a call that is %s is handled or not", name)
		require.Equal(t, test.handled, response == "the response", "want: a call that is %s has its response or none", name)
		require.Len(t, monitor.List(), test.count, "want: the violations of a call that is %s", name)

		for _, each := range monitor.List() {
			require.Equal(t, uint64(5), each.Call, "want: the number of the call")
		}
	}
}

// TestAPanicIsAFailure of its call.
func TestAPanicIsAFailure(t *testing.T) {
	t.Parallel()

	monitor := intercepted(t, strict.Observe)

	for range 4 {
		require.Panics(t, func() {
			_, _ = monitor.Unary(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}, &grpc.UnaryServerInfo{FullMethod: csi.Controller_DeleteVolume_FullMethodName},
				func(context.Context, any) (any, error) { panic("it fails") })
		}, "want: the panic passes through")
	}

	require.Len(t, monitor.List(), 1, "want: the call that panics is retried without backoff")
}
