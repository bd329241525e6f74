package driver

import (
	"context"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

// TestSlowHTTPClientsAreBounded: clients that never complete a header hold at most
// maxHTTPConnections descriptors, and /readyz is answered once their headers time out.
func TestSlowHTTPClientsAreBounded(t *testing.T) {
	const slow = maxHTTPConnections + 128

	measured, _ := newMetrics("csi.example.org", "v0", "")
	atProbe := make(chan int, 1)
	well := func(context.Context) (bool, error) {
		atProbe <- descriptors(t)

		return true, nil
	}

	server, listener, err := listenHTTP(t.Context(), &Config{HTTPEndpoint: "127.0.0.1:0"}, measured, "/no/such/socket", well,
		func(context.Context) (health.Report, error) { return health.Report{}, nil })
	require.NoError(t, err)
	require.Positive(t, server.ReadHeaderTimeout, "want: a header that does not come ends the connection")

	// Long enough for the connections of all clients.
	server.ReadHeaderTimeout = time.Second

	served := make(chan error, 1)
	go func() { served <- serveHTTP(server, listener) }()

	before := descriptors(t)

	for range slow {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)

		t.Cleanup(func() { _ = conn.Close() })

		_, err = conn.Write([]byte("G"))
		require.NoError(t, err)
	}

	client := http.Client{Timeout: 2 * time.Minute}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/readyz", http.NoBody)
	require.NoError(t, err)

	answer, err := client.Do(request)
	require.NoError(t, err, "GET /readyz beside %d slow clients", slow)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode, "want: /readyz answers beside slow clients")

	const others = 16 // the probe's two, epoll's, and the directory that is read

	require.LessOrEqual(t, await.Receive(t, atProbe, "the probe")-before-slow, maxHTTPConnections+others, "the server's connections during the probe")
	require.NoError(t, server.Close())
	require.NoError(t, await.Receive(t, served, "the HTTP server to end"))
}

func descriptors(t *testing.T) int {
	t.Helper()

	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)

	return len(entries)
}
