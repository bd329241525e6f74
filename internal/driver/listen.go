package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/socket"
)

// ErrEndpoint is returned for an endpoint that cannot be listened on.
var ErrEndpoint = errors.New("endpoint")

// socketDirMode is the mode of a directory that the driver creates.
const socketDirMode = 0o750

// SocketPath returns the path that an endpoint names: unix:///path, unix:path
// or a plain path, which has a slash.
func SocketPath(endpoint string) (string, error) {
	path, isURL := socket.CutScheme(endpoint)

	switch {
	case isURL:
	case !strings.Contains(endpoint, "/"):
		return "", fmt.Errorf("%w %q is no path: write an absolute one, or unix:NAME for a file in the working directory", ErrEndpoint, endpoint)
	case strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("%w %q: only unix sockets are served, such as unix:///run/touchstone/csi.sock", ErrEndpoint, endpoint)
	}

	if err := socket.CheckPath(path); err != nil {
		return "", fmt.Errorf("%w %q: %w", ErrEndpoint, endpoint, err)
	}

	return path, nil
}

// listen makes the socket of an endpoint that a flag names, and its directory if need be. One that
// is served already is a *socket.InUseError.
func listen(ctx context.Context, flag, endpoint string, ask socket.Ask) (*socket.Listener, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(filepath.Dir(path), socketDirMode); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}

	listener, err := socket.Listen(ctx, path, ask)

	switch {
	case errors.As(err, new(*socket.InUseError)):
		return nil, fmt.Errorf("%w %w: end it first, or choose another --%s", ErrEndpoint, err, flag)
	case errors.Is(err, socket.ErrPath):
		return nil, fmt.Errorf("%w: %w, or choose another --%s", ErrEndpoint, err, flag)
	case err != nil:
		return nil, err
	}

	return listener, nil
}

// listenTCP listens on the loopback address of the configuration, nil without one. Errors: socket.ErrAddress.
func (d *Driver) listenTCP(ctx context.Context) (net.Listener, error) {
	if d.config.TCPEndpoint == "" {
		return nil, nil //nolint:nilnil // documented
	}

	target, err := parseLoopback(d.config.TCPEndpoint)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tcpFlag, err)
	}

	listener, err := listenAt(ctx, tcpFlag, target)
	if err != nil {
		return nil, err
	}

	d.log.WarnContext(ctx, "every process of this machine can call the driver", "endpoint", listener.Addr().String())

	return listener, nil
}

// listenAt listens on the host:port that a flag names.
func listenAt(ctx context.Context, flag, target string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", target)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}

	return listener, nil
}

// askName returns the name and version of the driver behind the connection, or "".
func askName(ctx context.Context, connection *grpc.ClientConn) string {
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return ""
	}

	return strings.TrimSpace(info.GetName() + " " + info.GetVendorVersion())
}
