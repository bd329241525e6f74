package strict

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Violations"

	listCall  = "List"
	clearCall = "Clear"
)

// Register registers the service (internal/jsoncall): List returns an array of Violation, Clear forgets
// them. Both requests are empty.
func (m *Monitor) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName,
		jsoncall.Method(ServiceName, listCall, func(context.Context, *emptypb.Empty) (any, error) { return m.List(), nil }),
		jsoncall.Method(ServiceName, clearCall, func(context.Context, *emptypb.Empty) (any, error) {
			m.Clear()

			return struct{}{}, nil
		}),
	)
}

// List returns the violations. A driver without --strict answers UNIMPLEMENTED.
func List(ctx context.Context, connection grpc.ClientConnInterface) ([]Violation, error) {
	var list []Violation

	err := jsoncall.Ask(ctx, connection, jsoncall.FullMethod(ServiceName, listCall), &emptypb.Empty{}, &list)

	return list, err
}

// Clear forgets the violations.
func Clear(ctx context.Context, connection grpc.ClientConnInterface) error {
	return jsoncall.Ask(ctx, connection, jsoncall.FullMethod(ServiceName, clearCall), &emptypb.Empty{}, &struct{}{})
}
