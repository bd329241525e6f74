package driver

import (
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestPanicOfTheCodecIsInternal: grpc-go encodes and decodes outside of all interceptors.
func TestPanicOfTheCodecIsInternal(t *testing.T) {
	t.Parallel()

	c := newCodec(slog.New(slog.DiscardHandler))
	c.CodecV2 = nil

	_, err := c.Marshal(nil)
	rpccode.Require(t, err, codes.Internal)
	rpccode.Require(t, c.Unmarshal(nil, nil), codes.Internal)
}
