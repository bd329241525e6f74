// Package names is a service of Touchstone's own that lists the names of volumes, snapshots and
// groups, for which CSI has no RPC: people name them, and CSI's calls take ids.
//
// It contains the service and its client; it knows neither records nor commands.
package names

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Names"
	listCall    = "List"
)

// Kind is a kind of objects that have names.
type Kind string

// The kinds.
const (
	Volume   Kind = "volume"
	Snapshot Kind = "snapshot"
	Group    Kind = "group"
)

// Object is an object that a CO can see.
type Object struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Service answers for a controller.
type Service struct {
	// List returns the objects of a kind, ordered by id; none of an unknown kind.
	List func(Kind) []Object
}

// Register registers the service: List takes a google.protobuf.StringValue with the kind and
// returns a JSON array of Object (internal/jsoncall).
func (s *Service) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName, jsoncall.Method(ServiceName, listCall,
		func(_ context.Context, kind *wrapperspb.StringValue) (any, error) {
			return append([]Object{}, s.List(Kind(kind.GetValue()))...), nil
		}))
}

// List returns the objects of a kind. A driver other than Touchstone, or a process without a
// controller, answers UNIMPLEMENTED.
func List(ctx context.Context, connection grpc.ClientConnInterface, kind Kind) ([]Object, error) {
	var listed []Object

	err := jsoncall.Ask(ctx, connection, jsoncall.FullMethod(ServiceName, listCall), wrapperspb.String(string(kind)), &listed)

	return listed, err
}
