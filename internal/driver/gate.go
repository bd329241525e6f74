package driver

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate makes calls wait until the driver is ready, and refuses them once it drains.
// Identity calls pass while the driver starts: by Probe a CO sees that it is starting.
type gate struct {
	// ready and draining end when the driver is ready and when it drains.
	ready, draining context.Context //nolint:containedctx // they are states, not calls
	open, shut      context.CancelFunc
}

func newGate() *gate {
	g := &gate{}
	g.ready, g.open = context.WithCancel(context.Background())
	g.draining, g.shut = context.WithCancel(context.Background())

	return g
}

// opened reports whether the driver is or was ready.
func (g *gate) opened() bool { return g.ready.Err() != nil }

// shutting reports whether calls are refused.
func (g *gate) shutting() bool { return g.draining.Err() != nil }

// pass returns when the call may go on. It waits instead of refusing: a start
// takes a second or so at worst, the back-off after an error longer.
func (g *gate) pass(ctx context.Context, method string) error {
	if g.shutting() {
		return g.refusal()
	}

	if g.opened() || strings.HasPrefix(method, "/csi.v1.Identity/") {
		return nil
	}

	select {
	case <-g.draining.Done():
		return g.refusal()
	case <-g.ready.Done():
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (g *gate) refusal() error {
	return status.Error(codes.Unavailable, errShuttingDown.Error()+": try again when it is back")
}
