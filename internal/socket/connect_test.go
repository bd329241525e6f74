package socket_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestConnectToAnyPath: no byte of the path has a meaning.
func TestConnectToAnyPath(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"a.sock", "a b", "a%41", "a%zz", "a?b", "a#b", "a:b", "ä", "a\xff"} {
		path := filepath.Join(t.TempDir(), name)
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, health.NewServer())

		listener := listen(t, path)

		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()

		connection, err := socket.Connect(path)
		require.NoError(t, err)

		_, err = healthpb.NewHealthClient(connection).Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err, "call the server at %q", path)
		require.NoError(t, connection.Close())
		server.Stop()
		require.NoError(t, <-ended)
	}

	connection, err := socket.Connect(filepath.Join(t.TempDir(), "absent"))
	require.NoError(t, err)

	_, err = healthpb.NewHealthClient(connection).Check(t.Context(), &healthpb.HealthCheckRequest{})
	errtext.Require(t, err, "no such file")
	require.NoError(t, connection.Close())
}
