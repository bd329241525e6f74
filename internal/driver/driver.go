package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/identity"
)

// readyFileMode lets a probe of another user read it.
const readyFileMode = 0o644

// Driver has the services of one process behind one socket.
type Driver struct {
	*guard

	config     Config
	ops        *operation.Group
	components *components
	identity   *identity.Service
	// hide hides the socket until restore is called; nil before it is there.
	hide func() (restore func(), err error)
}

// New builds the services of config's mode. It neither listens nor reads the state:
// Run does, and also closes what New has opened. Errors: ErrConfig for an invalid
// configuration, the error of a directory that cannot be opened, or ctx's.
func New(ctx context.Context, config Config) (driver *Driver, err error) {
	if err := config.complete(); err != nil {
		return nil, err
	}

	calls, registry := newMetrics(config.DriverName, config.Version, config.Commit)
	durations := callDurations()
	registry.MustRegister(durations)

	d := &Driver{config: config, ops: operation.NewGroup(), guard: &guard{
		log: config.Log, metrics: calls, durations: durations, gate: newGate(), lists: newListLimiter(), codec: newCodec(config.Log),
		capabilities: config.capabilities, outer: config.Outer, inner: config.Inner,
	}}
	if d.lab, err = d.openLab(registry); err != nil {
		return nil, err
	}

	built, err := build(ctx, &d.config, d.ops, d.lab, registry)
	if err != nil {
		return nil, err
	}

	d.components = built
	d.components.reports.Report = d.report
	// A failed pool is a condition of its volumes, no reason for Probe to fail: the others are
	// served.
	d.identity = identity.New(identity.Config{
		Name: config.DriverName, Version: config.Version, Manifest: manifest(&config),
		Topology:     len(config.segments()) > 0,
		Capabilities: config.capabilities, Ready: d.gate.ready.Done(), Check: built.store.Err, Log: d.log,
		MoreManifest: d.lab.manifest,
	})

	return d, nil
}

func manifest(config *Config) map[string]string {
	manifest := map[string]string{
		"url": "https://github.com/touchstone-csi/touchstone", "mode": string(config.Mode), "go": runtime.Version(),
		"commit": config.Commit, "strict": config.Strict,
	}
	if config.SimulateNode {
		manifest["node"] = "simulated: nothing is mounted"
	}

	maps.DeleteFunc(manifest, func(_, value string) bool { return value == "" })

	return manifest
}

// Run listens, recovers the state of the previous run, serves until ctx ends, and
// drains. It returns nil after a complete drain, an error wrapping ErrDrain after an
// incomplete one, *socket.InUseError if another process serves the socket, and
// otherwise why the driver cannot run. Call it once.
func (d *Driver) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.components.close()) }()

	listener, err := listen(ctx, endpointFlag, d.config.Endpoint, askName)
	if err != nil && ctx.Err() != nil {
		return nil // a cancelled start has not failed
	}

	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()

	d.hide = listener.Hide

	also, err := d.listenTCP(ctx)
	if err != nil {
		return err
	}
	defer closeListener(also)

	web, webListener, err := listenHTTP(ctx, &d.config, d.metrics, listener.Path(), d.probeResult, d.reportWhenReady)
	if err != nil {
		return err
	}
	defer closeListener(webListener)

	traced, err := d.openTracing(ctx)
	if err != nil {
		return err
	}

	server := d.newServer(traced...)
	running, failed := errgroup.WithContext(ctx)

	running.Go(func() error { return serve(server, listener) })
	running.Go(func() error { return serveHTTP(web, webListener) })
	if also != nil {
		running.Go(func() error { return serve(server, also) })
	}
	running.Go(func() error { return d.startAndDrain(failed, server, web, listener.Path()) })

	return running.Wait()
}

// closeListener closes a listener that no server has closed, as when the start fails; nil is none.
func closeListener(listener net.Listener) {
	if listener != nil {
		_ = listener.Close()
	}
}

// serve serves calls until the server is stopped.
func serve(server *grpc.Server, listener net.Listener) error {
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}

	return nil
}

// startAndDrain runs from the start to the drain.
func (d *Driver) startAndDrain(ctx context.Context, server *grpc.Server, web *http.Server, path string) error {
	failure, background := d.start(ctx, path), func() {}
	if failure == nil {
		background = d.components.begin(ctx)

		<-ctx.Done()
		d.log.InfoContext(ctx, "draining", "why", context.Cause(ctx), "running", d.ops.Len())
	} else if ctx.Err() != nil {
		failure = nil // a cancelled start has not failed
	}

	return errors.Join(failure, d.drain(ctx, server, web, background), unannounce(d.config.ReadyFile))
}

func (d *Driver) start(ctx context.Context, path string) error {
	began := time.Now()

	if err := unannounce(d.config.ReadyFile); err != nil {
		return err
	}

	if d.lab.start != nil {
		if err := d.lab.start(ctx); err != nil {
			return err
		}
	}

	if err := d.components.open(ctx); err != nil {
		return err
	}

	d.gate.open()

	if err := d.components.announceToKubelet(ctx, &d.config); err != nil {
		return err
	}

	if err := announce(d.config.ReadyFile); err != nil {
		return err
	}

	d.log.InfoContext(ctx, "ready", "endpoint", path, "mode", d.config.Mode, "driver", d.config.DriverName,
		"version", d.config.Version, "node", d.config.NodeID, "took", time.Since(began))

	return nil
}

var errShuttingDown = errors.New("the driver is shutting down and takes no new calls")

// probeResult returns Probe's answer as plain values, also while the gate refuses
// Probe itself with all other calls.
func (d *Driver) probeResult(ctx context.Context) (ready bool, err error) {
	if d.gate.shutting() {
		return false, errShuttingDown
	}

	return d.identity.Health(ctx)
}

// announce notifies systemd (Type=notify), if that has started the driver, and writes the
// ready-file, which is empty for none.
func announce(readyFile string) error {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}

	if readyFile == "" {
		return nil
	}

	if err := renameio.WriteFile(readyFile, []byte(strconv.Itoa(os.Getpid())+"\n"), readyFileMode); err != nil {
		return fmt.Errorf("write the ready-file: %w", err)
	}

	return nil
}

// unannounce removes the ready-file, at the start also that of a run that
// was killed.
func unannounce(readyFile string) error {
	if readyFile == "" {
		return nil
	}

	if info, _ := os.Lstat(readyFile); info != nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%w: ready-file %s: something else is there, move it away", ErrConfig, readyFile)
	}

	// The run before, which ends, may remove it meanwhile.
	if err := os.Remove(readyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the ready-file: %w", err)
	}

	return nil
}

func (d *Driver) newServer(more ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(d.options(), more...)...)
	d.register(server)

	return server
}
