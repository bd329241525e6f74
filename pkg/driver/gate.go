package driver

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate holds calls back until the driver is ready, and turns them away once it
// drains. Identity passes while the driver starts: that is how a CO learns
// that it does.
type gate struct {
	ready, draining  chan struct{}
	opens, shutsDown sync.Once
}

func newGate() *gate {
	return &gate{ready: make(chan struct{}), draining: make(chan struct{})}
}

func (g *gate) open() { g.opens.Do(func() { close(g.ready) }) }

func (g *gate) shut() { g.shutsDown.Do(func() { close(g.draining) }) }

// opened says whether the driver has become ready.
func (g *gate) opened() bool {
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}

// shutting says whether calls are turned away.
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
	// Asked first and alone: of several channels that are closed, select takes
	// any.
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
