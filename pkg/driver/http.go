package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/netutil"

	"github.com/touchstone-csi/touchstone/pkg/driver/statuspage"
)

const (
	httpHeaderTimeout = 5 * time.Second
	httpTimeout       = 30 * time.Second
	// maxHTTPConnections bounds the file descriptors that slow clients can hold. More
	// connections wait in the kernel, for httpHeaderTimeout at most while no client
	// sends a whole request.
	maxHTTPConnections = 256
)

// newMetrics returns the manager of csi_plugin_operations_seconds, and the
// registry of all other metrics: the process' and the Go runtime's own are there.
func newMetrics(driverName string) (metrics.CSIMetricsManager, prometheus.Registerer) {
	others := prometheus.NewRegistry()
	others.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	return metrics.NewCSIMetricsManagerWithOptions(driverName,
		metrics.WithSubsystem(metrics.SubsystemPlugin),
		metrics.WithProcessStartTime(false), // the process collector has it
	).WithAdditionalRegistry(others), others
}

// readiness is Probe's answer.
type readiness func(context.Context) (ready bool, err error)

// listenHTTP binds the address, so that a taken one ends the start at once.
// An empty address gives a nil server.
func listenHTTP(
	ctx context.Context, address string, measured metrics.CSIMetricsManager, well readiness, report statuspage.Report,
) (*http.Server, net.Listener, error) {
	if address == "" {
		return nil, nil, nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("http-endpoint %s: %w", address, err)
	}

	mux := http.NewServeMux()
	measured.RegisterToServer(mux, "/metrics")
	statuspage.Register(mux, report)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready, err := well(r.Context())

		switch {
		case err != nil:
			http.Error(w, "unhealthy: "+err.Error(), http.StatusServiceUnavailable)
		case !ready:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	})

	return &http.Server{
		Handler: mux, ReadHeaderTimeout: httpHeaderTimeout, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout,
		IdleTimeout: httpHeaderTimeout,
	}, netutil.LimitListener(listener, maxHTTPConnections), nil
}

func serveHTTP(server *http.Server, listener net.Listener) error {
	if server == nil {
		return nil
	}

	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", listener.Addr(), err)
	}

	return nil
}
