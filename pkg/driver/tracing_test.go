package driver_test

import (
	"context"
	"net"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
)

// spans is a collector that keeps the names of the spans that it gets.
type spans struct {
	collector.UnimplementedTraceServiceServer

	names chan string
}

func (s *spans) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.names <- span.GetName()
			}
		}
	}

	return &collector.ExportTraceServiceResponse{}, nil
}

// TestCallsAreTraced: the collector gets the spans of the calls, at the end of the driver at the latest.
func TestCallsAreTraced(t *testing.T) {
	t.Parallel()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	collected := &spans{names: make(chan string, 100)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, collected)

	go func() { _ = server.Serve(listener) }()

	t.Cleanup(server.Stop)

	r := start(t, func(config *driver.Config) { config.OTLPEndpoint = "http://" + listener.Addr().String() })
	_, err = csi.NewIdentityClient(r.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)

	r.stop()
	require.NoError(t, r.wait(t))

	for name := ""; name != "csi.v1.Identity/GetPluginInfo"; {
		name = await.Receive(t, collected.names, "the span of GetPluginInfo")
	}
}

// TestACollectorThatDoesNotAnswer delays neither calls nor the end.
func TestACollectorThatDoesNotAnswer(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) { config.OTLPEndpoint = "http://127.0.0.1:1" })
	_, err := csi.NewIdentityClient(r.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)

	r.stop()
	require.NoError(t, r.wait(t))
}
