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

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
)

// unserved are the reasons why a driver lacks a service.
var unserved = map[string]string{
	calls.ServiceName:      "the driver records no calls: start it with --call-log=ring, or with a file",
	faults.ServiceName:     "the driver has no fault rules: start it with --enable-faults or --faults",
	strict.ServiceName:     "the driver does not check the CO: start it with --strict",
	health.ServiceName:     "the driver has no report of its volumes, and no checks on demand: it is not Touchstone",
	kata.ServiceName:       "the driver lists no direct volumes: it is not Touchstone, or serves no node",
	persistent.ServiceName: "the volume is mounted, but no start of the driver mounts it again: it is not Touchstone, or simulates its node",
	progress.ServiceName:   "the driver lists no copies: it is not Touchstone, or serves no controller",
}

// explain returns an error in the words of the person at the terminal: names in place of ids, and what to
// do about a service or a driver that is not there.
func (s *settings) explain(ctx context.Context, endpoint string, known knownNames, err error) error {
	code := status.Code(err)

	if message := status.Convert(err).Message(); code == codes.Unimplemented {
		for service, why := range unserved {
			if strings.Contains(message, "unknown service "+service) {
				return &explained{err, why}
			}
		}
	}

	if code == codes.Unavailable || code == codes.DeadlineExceeded {
		err = explainConnection(ctx, endpoint, err)
	}

	if err == nil {
		return nil
	}

	return &explained{err, known.in(err.Error())}
}

// explained is an error with another message.
type explained struct {
	error

	message string
}

// Error implements error.
func (e *explained) Error() string { return e.message }

// Unwrap returns the cause.
func (e *explained) Unwrap() error { return e.error }

// explainConnection adds the remedy to the error of a socket that cannot be reached.
func explainConnection(ctx context.Context, endpoint string, err error) error {
	path, isSocket := strings.CutPrefix(endpoint, "unix:")
	if !isSocket {
		return err
	}

	connection, failure := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
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
