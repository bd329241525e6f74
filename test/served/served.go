package served

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
)

// Connect returns a connection to a server that lasts as long as the test. As a driver, it makes the status of an
// error by its category.
func Connect(tb testing.TB, register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) grpc.ClientConnInterface {
	tb.Helper()

	server := grpc.NewServer(append(options,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			response, err := next(ctx, request)

			return response, rpc.Status(err)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return rpc.Status(next(service, stream))
		}))...)
	register(server)

	socket := filepath.Join(tb.TempDir(), "csi.sock")
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", socket)
	require.NoError(tb, err)

	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	connection, err := grpc.NewClient("unix://"+socket,
		append(awaitcall.Options(tb), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, connection.Close())
		server.Stop()
		require.NoError(tb, await.Receive(tb, ended, "the server to end"))
	})

	return connection
}

// Deaf returns a connection to a socket that nothing accepts connections of, so that no call on it is answered.
func Deaf(tb testing.TB) *grpc.ClientConn {
	tb.Helper()

	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", filepath.Join(tb.TempDir(), "deaf.sock"))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, listener.Close()) })

	connection, err := grpc.NewClient("unix://"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, connection.Close()) })

	return connection
}
