//go:build !nolab

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/lab/proxy"
	"github.com/touchstone-csi/touchstone/internal/socket"
)

// Forward serves config's endpoint, until ctx ends, by forwarding every call to the CSI
// server at the address to (see proxy.New). It uses only Endpoint, ReadyFile,
// DrainTimeout and Log of config: there is no pool and no state. Errors are those of
// Run, and socket.ErrAddress.
func Forward(ctx context.Context, config Config, to string) (err error) {
	config.completeLog()

	if err := notItself(config.Endpoint, to); err != nil {
		return err
	}

	elsewhere, err := proxy.New(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, elsewhere.Close()) }()

	if network, _, _ := socket.ParseAddress(to); network == "tcp" {
		config.Log.WarnContext(ctx, "while no CSI server listens at the port, a process of this machine that does gets calls and their secrets; "+
			"prefer a unix socket", "proxyEndpoint", to)
	}

	listener, err := listen(ctx, endpointFlag, config.Endpoint, askName)
	if err != nil {
		return err
	}

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
// that a CSI server makes to the address (see proxy.Pair): a socket file, which only its owner and
// root can connect to, or a port of the loopback. Errors: socket.ErrAddress.
func ForwardPaired(ctx context.Context, config Config, address string) error {
	config.completeLog()

	if err := notItself(config.Endpoint, address); err != nil {
		return err
	}

	far, err := listenForServer(ctx, &config, address)
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()

	near, err := listen(ctx, endpointFlag, config.Endpoint, askName)
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

// listenForServer listens where a CSI server connects to the proxy.
func listenForServer(ctx context.Context, config *Config, address string) (net.Listener, error) {
	if network, path, err := socket.ParseAddress(address); err == nil && network == "unix" {
		// A connection counts as a server there, so that a proxy that listens already is not asked
		// for its name.
		return listen(ctx, proxyListenFlag, path, func(context.Context, *grpc.ClientConn) string { return "" })
	}

	target, err := config.proxyAddress(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", proxyListenFlag, err)
	}

	listener, err := listenAt(ctx, proxyListenFlag, target)
	if err != nil {
		return nil, err
	}

	config.Log.WarnContext(ctx, "every process of this machine can act as the CSI server and gets the secrets of calls, "+
		"as can those that reach an address beyond the loopback; a unix socket is only for root and this user",
		"proxyListen", listener.Addr().String())

	return listener, nil
}

// CheckProxy returns why Forward or ForwardPaired cannot work with an address. Errors: ErrEndpoint,
// socket.ErrAddress.
func (c *Config) CheckProxy(address string) error {
	_, err := c.proxyAddress(address)

	return cmp.Or(err, notItself(c.Endpoint, address))
}

// proxyAddress is socket.ParseAddress, also of other machines' addresses with ProxyAnywhere.
func (c *Config) proxyAddress(address string) (string, error) {
	if target, isTCP := strings.CutPrefix(address, "tcp://"); isTCP && c.ProxyAnywhere {
		return target, nil
	}

	_, target, err := socket.ParseAddress(address)

	return target, err
}

// notItself refuses a proxy that would forward calls to itself.
func notItself(endpoint, to string) error {
	own, err := SocketPath(endpoint)
	if err != nil {
		return err
	}

	if there, err := SocketPath(to); err == nil && filepath.Clean(own) == filepath.Clean(there) {
		return fmt.Errorf("%w %s is the proxy's own endpoint; name another server's", socket.ErrAddress, to)
	}

	return nil
}
