package ctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explainConnection adds the remedy to the error of a socket that cannot be reached.
func explainConnection(ctx context.Context, endpoint string, err error) error {
	path, isSocket := strings.CutPrefix(endpoint, "unix://")
	if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded || !isSocket {
		return err
	}

	connection, failure := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if failure == nil {
		_ = connection.Close()

		return err
	}

	var remedy string

	switch {
	case errors.Is(failure, fs.ErrNotExist):
		remedy = "there is no socket: is the driver running? `touchstone serve` or `systemctl start touchstone` " +
			"starts it, --endpoint names another socket"
	case errors.Is(failure, unix.ECONNREFUSED):
		remedy = "nothing listens there any more: start the driver again"
	case errors.Is(failure, fs.ErrPermission):
		remedy = "the socket belongs to another user: use root (sudo)"
	default:
		return err
	}

	return fmt.Errorf("%w; %s", err, remedy)
}
