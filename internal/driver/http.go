package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/driver/statuspage"
	"github.com/touchstone-csi/touchstone/internal/socket"
)

const (
	httpHeaderTimeout = 5 * time.Second
	httpTimeout       = 30 * time.Second
	// livenessTimeout is less than the timeout of the kubelet's probe (5 s in the chart).
	livenessTimeout = 4 * time.Second
	// maxHTTPConnections bounds the file descriptors that slow clients can hold. More
	// connections wait in the kernel, for httpHeaderTimeout at most while no client
	// sends a whole request.
	maxHTTPConnections = 256
)

// newMetrics returns the manager of csi_plugin_operations_seconds, and the registry of all other
// metrics: those of the build, the process and the Go runtime are there.
func newMetrics(driverName, version, commit string) (metrics.CSIMetricsManager, prometheus.Registerer) {
	others := prometheus.NewRegistry()
	others.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	others.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "touchstone_build_info", Help: "1, with the version of the driver in its labels.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))

	return metrics.NewCSIMetricsManagerWithOptions(driverName,
		metrics.WithSubsystem(metrics.SubsystemPlugin),
		metrics.WithProcessStartTime(false), // the process collector has it
	).WithAdditionalRegistry(others), others
}

// callDurations returns the histogram of calls with buckets for a local driver, whose calls take
// milliseconds: those of csi_plugin_operations_seconds begin at 100 ms.
func callDurations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "touchstone_call_duration_seconds", Help: "Duration of calls.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120, 600},
	}, []string{"method", "code"})
}

// checkAnswers calls Probe through the socket at path, and returns why the driver does not answer.
// Any answer is life, also that the plugin is unhealthy: a restart would not change that. A socket
// that was removed, or a server that does not answer, is none.
func checkAnswers(ctx context.Context, path string) error {
	connection, err := socket.Connect(path)
	if err != nil {
		return err
	}
	defer connection.Close()

	ctx, cancel := context.WithTimeout(ctx, livenessTimeout)
	defer cancel()

	_, err = csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return err
	}

	return nil
}

// listenHTTP binds the endpoint, so that a taken one ends the start at once.
// An empty endpoint gives a nil server. The driver serves the socket at path; probe returns
// Probe's answer.
func listenHTTP(ctx context.Context, config *Config, measured metrics.CSIMetricsManager, path string,
	probe func(context.Context) (ready bool, err error), report statuspage.Report,
) (*http.Server, net.Listener, error) {
	if config.HTTPEndpoint == "" {
		return nil, nil, nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", config.HTTPEndpoint)
	if err != nil {
		return nil, nil, fmt.Errorf("http-endpoint %s: %w", config.HTTPEndpoint, err)
	}

	mux := http.NewServeMux()
	measured.RegisterToServer(mux, "/metrics")
	statuspage.Register(mux, report)

	if config.Profiling {
		// Those that net/http/pprof has for http.DefaultServeMux. A profile takes at most httpTimeout: ask for
		// fewer seconds (?seconds=20).
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}

	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		if err := checkAnswers(r.Context(), path); err != nil {
			http.Error(w, "no answer on the CSI socket: "+err.Error(), http.StatusServiceUnavailable)

			return
		}

		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready, err := probe(r.Context())

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
		Handler: onlyHosts(config.hostNames(), mux), ReadHeaderTimeout: httpHeaderTimeout, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout,
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
