package driver

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPanicOfTheCodecIsInternal: grpc-go encodes and decodes outside of all interceptors.
func TestPanicOfTheCodecIsInternal(t *testing.T) {
	t.Parallel()

	c := newCodec(slog.New(slog.DiscardHandler))
	c.CodecV2 = nil

	_, err := c.Marshal(nil)
	require.Equal(t, codes.Internal, status.Code(err))
	require.Equal(t, codes.Internal, status.Code(c.Unmarshal(nil, nil)))
}
