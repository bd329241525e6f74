package driver

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"google.golang.org/grpc"
)

const (
	// exportTimeout bounds one export of spans, tracingTimeout the one of the last.
	exportTimeout  = time.Second
	tracingTimeout = 2 * time.Second
)

// openTracing has every call recorded as a span, and each operation as a child of the call that
// began it, to which calls that join it are linked (internal/operation). The spans go to the OTLP
// collector at the URL; one that does not answer delays nothing. An empty URL is off.
func (d *Driver) openTracing(ctx context.Context) ([]grpc.ServerOption, error) {
	if d.config.OTLPEndpoint == "" {
		return nil, nil
	}

	// Without retries, so that the last export has ended when the driver has.
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(d.config.OTLPEndpoint),
		otlptracegrpc.WithTimeout(exportTimeout), otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, fmt.Errorf("%w: otlp-endpoint %q: %w", ErrConfig, d.config.OTLPEndpoint, err)
	}

	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(resource.NewSchemaless(
		semconv.ServiceName(d.config.DriverName), semconv.ServiceVersion(d.config.Version),
		semconv.ServiceInstanceID(d.config.NodeID),
	)))
	d.components.closers = append(d.components.closers, func() error { //nolint:contextcheck // ctx has ended by then
		ctx, cancel := context.WithTimeout(context.Background(), tracingTimeout)
		defer cancel()

		// Spans that the collector does not take by then are lost, which is no failure of the driver.
		_ = provider.Shutdown(ctx)

		return nil
	})

	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(provider), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}, nil
}
