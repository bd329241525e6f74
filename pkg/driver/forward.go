package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/driver/proxy"
)

// Forward serves config's endpoint, until ctx ends, by forwarding every call to the CSI
// server at the address to (see proxy.New). It uses only Endpoint, ReadyFile,
// DrainTimeout and Log of config: there is no pool and no state. Errors are those of
// Run, and proxy.ErrAddress.
func Forward(ctx context.Context, config Config, to string) (err error) {
	config.completeDefaults()

	if err := notItself(config.Endpoint, to); err != nil {
		return err
	}

	elsewhere, err := proxy.New(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, elsewhere.Close()) }()

	listener, err := listen(ctx, config.Endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()

	server := grpc.NewServer(elsewhere.ServerOptions()...) //nolint:contextcheck // each call brings its own
	running, failed := errgroup.WithContext(ctx)

	running.Go(func() error { return serve(server, listener) })
	running.Go(func() error {
		failure := announce(config.ReadyFile)
		if failure == nil {
			config.Log.InfoContext(ctx, "ready", "endpoint", listener.Path(), "forwardsTo", to)
			<-failed.Done()
			config.Log.InfoContext(ctx, "draining", "why", context.Cause(failed))
		}

		ending, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), config.DrainTimeout,
			fmt.Errorf("%w within %s", ErrDrain, config.DrainTimeout))
		defer cancel()

		return errors.Join(failure, stop(ending, server), unannounce(config.ReadyFile))
	})

	return running.Wait()
}

// ForwardPaired serves config's endpoint, until ctx ends, by joining each connection to it with one
// that a CSI server makes to the loopback address (see proxy.Pair). Errors: proxy.ErrAddress.
func ForwardPaired(ctx context.Context, config Config, address string) error {
	config.completeDefaults()

	far, err := proxy.Listen(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()

	near, err := listen(ctx, config.Endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = near.Close() }()

	if err := announce(config.ReadyFile); err != nil {
		return err
	}

	config.Log.InfoContext(ctx, "ready", "endpoint", near.Path(), "awaitsConnectionsAt", far.Addr().String())

	return errors.Join(proxy.Pair(ctx, near, far), unannounce(config.ReadyFile))
}

// notItself refuses a proxy that would forward calls to itself.
func notItself(endpoint, to string) error {
	own, err := SocketPath(endpoint)
	if err != nil {
		return err
	}

	if there, err := SocketPath(to); err == nil && filepath.Clean(own) == filepath.Clean(there) {
		return fmt.Errorf("%w %s is the proxy's own endpoint; name another server's", proxy.ErrAddress, to)
	}

	return nil
}
