package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// ErrDrain is returned by Run when operations were still running as the
// driver had to end. They are finished or undone at the next start.
var ErrDrain = errors.New("ended before all operations were done")

// ErrSignal is the cause of the context that UntilSignal returns.
var ErrSignal = errors.New("signal")

// closeTime is the part of the drain timeout that is kept for closing the state and the
// pools; at most a fifth of it.
const closeTime = 2 * time.Second

// sameSignal is how long after the first signal another one is the same request: timeout(1) sends two at
// once, to the process and to its group.
const sameSignal = 200 * time.Millisecond

// UntilSignal returns a context that ends with the first signal. It calls exit with 1 at
// a second signal that comes later than sameSignal, and when limit, the drain timeout, has passed since the first one:
// whatever still hangs then, mostly in the kernel, does not return in time. Call stop when
// signals no longer matter.
func UntilSignal(
	parent context.Context, signals <-chan os.Signal, limit time.Duration, exit func(code int),
) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	over := make(chan struct{})

	go func() {
		defer close(over)

		select {
		case <-done:
			return
		case received := <-signals:
			cancel(fmt.Errorf("%w: %s", ErrSignal, received))
		}

		first, late := time.Now(), time.After(limit)

		for {
			select {
			case <-done:
				return
			case <-signals:
				if time.Since(first) >= sameSignal {
					exit(1)

					return
				}
			case <-late:
				exit(1)

				return
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
	limit := d.config.DrainTimeout - min(closeTime, d.config.DrainTimeout/5) //nolint:mnd // a fifth of a short limit

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()

	d.gate.shut()

	for _, drain := range d.lab.drain {
		drain()
	}

	started, stopped, ended := time.Now(), make(chan error, 1), make(chan error, 1)

	go func() { stopped <- stop(ctx, server) }()

	// A check that hangs must not keep a coalescing window open until the limit.
	go func() {
		err := operation.AwaitEnd(ctx, background)
		if err != nil {
			err = errBackground
		}
		ended <- err
	}()

	err := errors.Join(d.components.drain(ctx), d.ops.Drain(ctx), <-ended, <-stopped)

	if web != nil {
		err = errors.Join(err, web.Close())
	}

	d.log.InfoContext(ctx, "drained", "took", time.Since(started), "stillRunning", d.ops.Len())

	if err != nil {
		return fmt.Errorf("%w within %s: %w", ErrDrain, limit, err)
	}

	return nil
}

// stop ends the server, whose socket is removed first, when its calls have ended or with ctx: calls
// that hang in the kernel do not react to their context.
func stop(ctx context.Context, server *grpc.Server) error {
	err := operation.AwaitEnd(ctx, server.GracefulStop)
	if err != nil {
		server.Stop()
	}

	return err
}
