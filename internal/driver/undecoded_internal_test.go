package driver

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

var errRefused = errors.New("refused before it is admitted")

// TestAnUndecodedRequestIsForgotten, whether it is admitted, refused before that or replaced on the way.
func TestAnUndecodedRequestIsForgotten(t *testing.T) {
	t.Parallel()

	calls, _ := newMetrics("test", "", "")
	g := &guard{log: slog.New(slog.DiscardHandler), metrics: calls, durations: callDurations(), gate: newGate(), codec: newCodec(slog.Default())}
	g.gate.open()

	info := &grpc.UnaryServerInfo{FullMethod: csi.Controller_DeleteVolume_FullMethodName}
	served := func(context.Context, any) (any, error) { return &csi.DeleteVolumeResponse{}, nil }

	for name, test := range map[string]struct {
		between grpc.UnaryHandler
		want    codes.Code
	}{
		"admitted": {func(ctx context.Context, request any) (any, error) { return g.admit(ctx, request, info, served) }, codes.InvalidArgument},
		"replaced": {func(ctx context.Context, _ any) (any, error) {
			return g.admit(ctx, &csi.DeleteVolumeRequest{}, info, served)
		}, codes.InvalidArgument},
		"refused": {func(context.Context, any) (any, error) { return nil, errRefused }, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			request := &csi.DeleteVolumeRequest{}
			require.NoError(t, g.codec.Unmarshal(notText(1), request), "grpc-go would answer INTERNAL")

			_, err := g.observe(t.Context(), request, info, test.between)
			require.Equal(t, test.want.String(), status.Code(err).String(), "want: the code of what the handler within returns")

			_, kept := g.codec.problems.Load(request)
			require.False(t, kept, "the codec keeps a request that has ended")
		})
	}

	t.Run("refused by grpc-go", func(t *testing.T) {
		t.Parallel()

		request := &csi.GetMetadataAllocatedRequest{}
		stream := &guardedStream{ServerStream: secondMessage{codec: g.codec}, ctx: t.Context(), guard: g}
		require.ErrorIs(t, stream.RecvMsg(request), errRefused)

		_, kept := g.codec.problems.Load(request)
		require.False(t, kept, "the codec keeps a request that has ended")
	})
}

// notText is the encoding of a message whose field of that number is not UTF-8.
func notText(field protowire.Number) mem.BufferSlice {
	return mem.BufferSlice{mem.SliceBuffer(protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), "\xff"))}
}

// secondMessage is a stream whose client sends a second message, which grpc-go refuses after it has
// decoded the first.
type secondMessage struct {
	grpc.ServerStream

	codec *codec
}

// RecvMsg implements grpc.ServerStream.
func (s secondMessage) RecvMsg(into any) error {
	return errors.Join(s.codec.Unmarshal(notText(1), into), errRefused)
}
