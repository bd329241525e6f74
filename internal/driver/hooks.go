package driver

import (
	"context"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// part is a part of the lab.
type part interface {
	Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error)
	Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error
	Register(server grpc.ServiceRegistrar)
}

// hooks are where the lab acts on a driver (internal/lab). openLab fills them; the zero value, of a driver
// without a lab, has no effect.
type hooks struct {
	options []grpc.ServerOption
	// parts intercept calls, from the outside in, and have a service of their own.
	parts []part
	// holdsResponses reports that a response may wait after its handler has ended.
	holdsResponses bool
	// point is called at the points of operations, conditions adds conditions to volumes, manifest entries
	// to GetPluginInfo, and reports rules to the health report.
	point      operation.Hook
	conditions func(view, volumeID string) []health.Entry
	manifest   func() map[string]string
	reports    func() []health.FaultReport
	// start is called before the driver starts, and watches go on until ctx ends.
	start   func(ctx context.Context) error
	watches []func(ctx context.Context)
	// drain ends waiting calls.
	drain []func()
	close []func() error
}
