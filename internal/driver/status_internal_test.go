package driver

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// TestErrorsOfHandlersGetTheirStatus: no handler makes it, whether it answers once or by a stream.
func TestErrorsOfHandlersGetTheirStatus(t *testing.T) {
	t.Parallel()

	g := &guard{log: slog.New(slog.DiscardHandler), gate: newGate(), codec: newCodec(slog.Default()), lists: newListLimiter()}
	g.gate.open()

	failure := fmt.Errorf("delete volume a: %w", errdefs.New(errdefs.ErrFailedPrecondition, "it is in use"))
	want := status.New(codes.FailedPrecondition, "delete volume a: it is in use")

	_, err := g.admit(t.Context(), &csi.DeleteVolumeRequest{}, &grpc.UnaryServerInfo{FullMethod: csi.Controller_DeleteVolume_FullMethodName},
		func(context.Context, any) (any, error) { return nil, failure })
	require.Equal(t, want, status.Convert(err))

	err = g.admitStream(nil, &guardedStream{ctx: t.Context(), guard: g},
		&grpc.StreamServerInfo{FullMethod: csi.SnapshotMetadata_GetMetadataDelta_FullMethodName},
		func(any, grpc.ServerStream) error { return failure })
	require.Equal(t, want, status.Convert(err))
}
