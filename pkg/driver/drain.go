package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// ErrDrain is returned by Run when operations were still running as the
// driver had to end. They are finished or undone at the next start.
var ErrDrain = errors.New("ended before all operations were done")

// ErrSignal is the cause of the context that UntilSignal returns.
var ErrSignal = errors.New("signal")

// UntilSignal returns a context that ends with the first signal. The second signal
// calls exit with 1. Call stop when signals no longer matter.
func UntilSignal(parent context.Context, signals <-chan os.Signal, exit func(code int)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	over := make(chan struct{})

	go func() {
		defer close(over)

		for count := 0; ; count++ {
			select {
			case <-done:
				return
			case received := <-signals:
				if count > 0 {
					exit(1)

					return
				}

				cancel(fmt.Errorf("%w: %s", ErrSignal, received))
			}
		}
	}()

	return ctx, func() {
		cancel(nil)
		close(done)
		<-over
	}
}

var errBackground = errors.New("probes or checks that were canceled have not ended")

// drain ends the driver without losing an acknowledged change: it refuses new calls,
// removes the socket, waits for background work, which was cancelled, and for running
// operations, and then for their responses.
func (d *Driver) drain(ctx context.Context, server *grpc.Server, web *http.Server, background func()) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.config.DrainTimeout)
	defer cancel()

	d.gate.shut()

	answered := make(chan struct{})

	go func() {
		defer close(answered)
		server.GracefulStop() // closes the listener, which removes the socket, first of all
	}()

	started := time.Now()
	err := operation.AwaitEnd(ctx, background)
	if err != nil {
		err = errBackground
	}

	err = errors.Join(err, d.components.drain(ctx), d.ops.Drain(ctx))

	select {
	case <-answered:
	case <-ctx.Done():
		// Calls that hang in the kernel do not react to their context.
		server.Stop()

		err = errors.Join(err, context.Cause(ctx))
	}

	if web != nil {
		err = errors.Join(err, web.Close())
	}

	d.log.InfoContext(ctx, "drained", "took", time.Since(started), "stillRunning", d.ops.Len())

	if err != nil {
		return fmt.Errorf("%w within %s: %w", ErrDrain, d.config.DrainTimeout, err)
	}

	return nil
}
