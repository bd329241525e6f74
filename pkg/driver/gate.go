package driver

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate makes calls wait until the driver is ready, and refuses them once it drains.
// Identity calls pass while the driver starts: by Probe a CO sees that it is starting.
type gate struct {
	ready, draining  chan struct{}
	opens, shutsDown sync.Once
}

func newGate() *gate {
	return &gate{ready: make(chan struct{}), draining: make(chan struct{})}
}

func (g *gate) open() { g.opens.Do(func() { close(g.ready) }) }

func (g *gate) shut() { g.shutsDown.Do(func() { close(g.draining) }) }

// opened reports whether the driver is or was ready.
func (g *gate) opened() bool {
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}

// shutting reports whether calls are refused.
func (g *gate) shutting() bool {
	select {
	case <-g.draining:
		return true
	default:
		return false
	}
}

// pass returns when the call may go on. It waits instead of refusing: a start
// takes a second or so at worst, the back-off after an error longer.
func (g *gate) pass(ctx context.Context, method string) error {
	// Tested first and separately: select chooses any of several closed channels.
	if g.shutting() {
		return g.refusal()
	}

	select {
	case <-g.ready:
		return nil
	default:
	}

	if strings.HasPrefix(method, "/csi.v1.Identity/") {
		return nil
	}

	select {
	case <-g.draining:
		return g.refusal()
	case <-g.ready:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (g *gate) refusal() error {
	return status.Error(codes.Unavailable, errShuttingDown.Error()+": try again when it is back")
}
