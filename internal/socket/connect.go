package socket

import (
	"context"
	"fmt"
	"net"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Connect prepares a gRPC connection to the socket at path, which may contain any
// bytes: gRPC parses its target as a URL, so they are escaped there. The first call dials.
func Connect(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+(&url.URL{Path: path}).EscapedPath(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}

	return conn, nil
}
