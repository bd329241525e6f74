package proxy_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/touchstone-csi/touchstone/internal/lab/proxy"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestLoopOfProxiesIsRefused: a call that passes a proxy twice is not forwarded again.
func TestLoopOfProxiesIsRefused(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	front := forward(t, a, b)
	forward(t, b, a)

	itself := filepath.Join(dir, "c")

	for name, client := range map[string]grpc_testing.TestServiceClient{"two": front, "itself": forward(t, itself, itself)} {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		_, err := client.UnaryCall(ctx, request(""))

		cancel()
		rpccode.Require(t, err, codes.FailedPrecondition, "%s", name)
		errtext.Require(t, err, "leads back to this proxy")
	}
}

// forward serves a proxy at one path to another, and returns a client of it.
func forward(t *testing.T, from, to string) grpc_testing.TestServiceClient {
	t.Helper()

	made, err := proxy.New(to)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.Close()) })

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", from)
	require.NoError(t, err)

	server := grpc.NewServer(made.ServerOptions()...)
	done := make(chan error, 1)

	go func() { done <- server.Serve(listener) }()

	t.Cleanup(func() { server.Stop(); require.NoError(t, await.Receive(t, done, "the server to end")) })

	conn, err := grpc.NewClient("unix:"+from, append(awaitcall.Options(t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })

	return grpc_testing.NewTestServiceClient(conn)
}
