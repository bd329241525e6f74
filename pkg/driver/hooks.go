package driver

import (
	"context"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// hooks are where the lab acts on a driver (internal/lab). openLab fills them; a build with the tag nolab has
// no lab.
type hooks struct {
	options []grpc.ServerOption
	unary   []grpc.UnaryServerInterceptor
	streams []grpc.StreamServerInterceptor
	// holdsResponses reports that a response may wait after its handler has ended.
	holdsResponses bool
	// point is called at the points of operations, conditions adds conditions to volumes, and manifest
	// entries to GetPluginInfo; each may be nil.
	point      operation.Hook
	conditions func(view, volumeID string) []health.Entry
	manifest   func() map[string]string

	// start is called before the driver starts, and run until ctx ends.
	start    func(ctx context.Context) error
	run      func(ctx context.Context)
	register func(grpc.ServiceRegistrar)
	reports  func() []health.FaultReport
	// drain ends waiting calls.
	drain func()
	close func() error
}
