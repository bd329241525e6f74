package driver_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSystemdIsNotified once calls are served.
func TestSystemdIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")

	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)

	defer socket.Close()

	t.Setenv("NOTIFY_SOCKET", path)
	start(t, nil)

	message := make([]byte, 64)
	n, err := socket.Read(message)
	require.NoError(t, err)
	require.Equal(t, "READY=1", string(message[:n]))
}
