package driver

import (
	"context"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// hooks are where the lab acts on a driver (internal/lab). openLab fills them; the zero value, of a driver
// without a lab, has no effect.
type hooks struct {
	options []grpc.ServerOption
	unary   []grpc.UnaryServerInterceptor
	streams []grpc.StreamServerInterceptor
	// holdsResponses reports that a response may wait after its handler has ended.
	holdsResponses bool
	register       []func(grpc.ServiceRegistrar)
	// point is called at the points of operations, conditions adds conditions to volumes, manifest entries
	// to GetPluginInfo, and reports rules to the health report.
	point      operation.Hook
	conditions func(view, volumeID string) []health.Entry
	manifest   func() map[string]string
	reports    func() []health.FaultReport
	// start is called before the driver starts, and run goes on until ctx ends.
	start func(ctx context.Context) error
	run   func(ctx context.Context)
	// drain ends waiting calls.
	drain []func()
	close []func() error
}
