package served

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/test/logs"
)

// spans is a collector of traces.
type spans struct {
	collector.UnimplementedTraceServiceServer

	text logs.Buffer
}

// Export implements collector.TraceServiceServer.
func (s *spans) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	_, err := s.text.Write([]byte(request.String()))

	return &collector.ExportTraceServiceResponse{}, err
}

// Collect serves an OTLP collector at the endpoint that it returns, and returns the text of all spans
// that were exported so far. A driver has exported all of its spans when it has ended.
func Collect(tb testing.TB) (endpoint string, text func() string) {
	tb.Helper()

	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)

	collected, server := &spans{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, collected)

	go func() { _ = server.Serve(listener) }()

	tb.Cleanup(server.Stop)

	return "http://" + listener.Addr().String(), collected.text.String
}
