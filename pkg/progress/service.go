package progress

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Progress"
	listMethod  = "/" + ServiceName + "/List"
)

// lister is what the service's handler is registered for.
type lister interface {
	List() []Entry
}

// Register puts the service behind server. It has one call: List, from
// google.protobuf.Empty to a google.protobuf.BytesValue with a JSON array of
// entries. So it needs no generated code, and a person with grpcurl can read it.
func (r *Registry) Register(server grpc.ServiceRegistrar) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*lister)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "List", Handler: handleList}},
	}, r)
}

func handleList(
	service any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor, //nolint:revive // grpc's order
) (any, error) {
	request := &emptypb.Empty{}
	if err := decode(request); err != nil {
		return nil, err
	}

	list := func(context.Context, any) (any, error) {
		registry, _ := service.(lister)

		encoded, err := json.Marshal(registry.List())
		if err != nil {
			return nil, fmt.Errorf("encode the progress: %w", err)
		}

		return wrapperspb.Bytes(encoded), nil
	}

	if intercept == nil {
		return list(ctx, request)
	}

	return intercept(ctx, request, &grpc.UnaryServerInfo{Server: service, FullMethod: listMethod}, list)
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
	answer := &wrapperspb.BytesValue{}
	if err := c.connection.Invoke(ctx, listMethod, &emptypb.Empty{}, answer, options...); err != nil {
		return nil, err //nolint:wrapcheck // it carries the driver's status
	}

	var entries []Entry
	if err := json.Unmarshal(answer.GetValue(), &entries); err != nil {
		return nil, fmt.Errorf("decode the progress: %w", err)
	}

	return entries, nil
}
