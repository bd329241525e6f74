package progress

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Progress"
	listCall    = "List"
	cancelCall  = "Cancel"
)

// Register puts the service behind server: List from google.protobuf.Empty, and Cancel from a
// google.protobuf.StringValue, to a JSON array of entries (internal/jsoncall).
func (r *Registry) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName,
		jsoncall.Method(ServiceName, listCall, func(context.Context, *emptypb.Empty) (any, error) { return r.List(), nil }),
		jsoncall.Method(ServiceName, cancelCall, func(ctx context.Context, object *wrapperspb.StringValue) (any, error) {
			cancelled, err := r.Cancel(ctx, object.GetValue())

			return append([]Entry{}, cancelled...), err
		}))
}

// Client asks a driver how far its work is.
type Client struct {
	connection grpc.ClientConnInterface
}

// NewClient returns a client of the driver at the other end.
func NewClient(connection grpc.ClientConnInterface) *Client { return &Client{connection: connection} }

// List returns the running tasks, the oldest first. A driver that is none of
// Touchstone's answers UNIMPLEMENTED.
func (c *Client) List(ctx context.Context, options ...grpc.CallOption) ([]Entry, error) {
	var entries []Entry

	err := jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, listCall), &emptypb.Empty{}, &entries, options...)

	return entries, err
}

// Cancel cancels the tasks of an object, by its id or name, and returns them once they have ended; none if
// there are none.
func (c *Client) Cancel(ctx context.Context, object string) ([]Entry, error) {
	var cancelled []Entry

	err := jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, cancelCall), wrapperspb.String(object), &cancelled)

	return cancelled, err
}
