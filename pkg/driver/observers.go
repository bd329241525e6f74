package driver

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

// observers record and check the CO's calls; each is nil without its flag.
type observers struct {
	// recorder records calls (--call-log).
	recorder *calls.Recorder
	// monitor checks the CO (--strict).
	monitor *strict.Monitor
}

// newObservers opens the call log and registers the observers' metrics.
func newObservers(config *Config, registry prometheus.Registerer) (*observers, error) {
	o := &observers{}

	if config.CallLog != "" {
		recorder, err := calls.New(calls.Config{To: config.CallLog, KeepSecrets: config.CallLogSecrets, Log: config.Log})
		if err != nil {
			return nil, err
		}

		o.recorder = recorder

		if err := registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "touchstone_call_log_lost_total", Help: "Calls that could not be written to the file of --call-log.",
		}, func() float64 { return float64(recorder.Lost()) })); err != nil {
			return nil, fmt.Errorf("register the metric of the call log: %w", err)
		}
	}

	if config.Strict != strict.Off {
		monitor, err := strict.New(strict.Config{
			Mode: config.Strict, NodeID: config.NodeID, Capabilities: config.capabilities, Log: config.Log,
		}, registry)
		if err != nil {
			return nil, err
		}

		o.monitor = monitor
	}

	return o, nil
}

func (o *observers) register(server grpc.ServiceRegistrar) {
	if o.recorder != nil {
		o.recorder.Register(server)
	}

	if o.monitor != nil {
		o.monitor.Register(server)
	}
}

// drain ends the calls that follow the call log.
func (o *observers) drain() {
	if o.recorder != nil {
		o.recorder.Drain()
	}
}

func (o *observers) close() error {
	if o.recorder == nil {
		return nil
	}

	return o.recorder.Close()
}

// interceptors returns those of the observers that there are, from the outside in. The recorder is
// outside of everything that may change a response, so that it has what the CO got, and so is the
// monitor, which also refuses before anything else can have an effect.
func (o *observers) interceptors() (unary []grpc.UnaryServerInterceptor, streams []grpc.StreamServerInterceptor) {
	if o.recorder != nil {
		unary, streams = append(unary, o.record), append(streams, o.recordStream)
	}

	if o.monitor != nil {
		unary, streams = append(unary, o.check), append(streams, o.checkStream)
	}

	return unary, streams
}

// errPanic is what the CO gets for a panic, which passes through these interceptors.
var errPanic = status.Error(codes.Internal, "panic in a call")

func numberOf(ctx context.Context) uint64 {
	id, _ := ctx.Value(callKey{}).(call)

	return id.number
}

func (o *observers) record(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !calls.Records(info.FullMethod) {
		return next(ctx, request)
	}

	recording := o.recorder.Begin(ctx, numberOf(ctx), info.FullMethod)
	recording.Request(request)

	err = errPanic
	defer func() { recording.End(response, err) }()

	return next(ctx, request)
}

func (o *observers) recordStream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) (err error) {
	if !calls.Records(info.FullMethod) {
		return next(service, stream)
	}

	recording := o.recorder.Begin(stream.Context(), numberOf(stream.Context()), info.FullMethod)

	err = errPanic
	defer func() { recording.End(nil, err) }()

	return next(service, &recordedStream{stream, recording})
}

type recordedStream struct {
	grpc.ServerStream

	recording *calls.Recording
}

// RecvMsg implements grpc.ServerStream.
func (s *recordedStream) RecvMsg(into any) error {
	err := s.ServerStream.RecvMsg(into)
	if err == nil {
		s.recording.Request(into)
	}

	return err
}

// SendMsg implements grpc.ServerStream.
func (s *recordedStream) SendMsg(message any) error {
	err := s.ServerStream.SendMsg(message)
	if err == nil {
		s.recording.Message(message)
	}

	return err
}

func (o *observers) check(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !strict.Watches(info.FullMethod) {
		return next(ctx, request)
	}

	end, refusal := o.monitor.Begin(ctx, numberOf(ctx), info.FullMethod, request)
	if refusal != nil {
		return nil, refusal
	}

	err = errPanic
	defer func() { end(response, err) }()

	return next(ctx, request)
}

func (o *observers) checkStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !strict.Watches(info.FullMethod) {
		return next(service, stream)
	}

	if err := o.monitor.BeginStream(stream.Context(), numberOf(stream.Context()), info.FullMethod); err != nil {
		return err
	}

	checked := &checkedStream{ServerStream: stream, monitor: o.monitor, method: info.FullMethod}
	err := errPanic

	defer func() {
		if checked.end != nil {
			checked.end(nil, err)
		}
	}()

	err = next(service, checked)

	return err
}

type checkedStream struct {
	grpc.ServerStream

	monitor *strict.Monitor
	method  string
	// end ends the check of the request.
	end func(response any, err error)
}

// RecvMsg implements grpc.ServerStream.
func (s *checkedStream) RecvMsg(into any) error {
	if err := s.ServerStream.RecvMsg(into); err != nil || s.end != nil {
		return err
	}

	end, refusal := s.monitor.Begin(s.Context(), numberOf(s.Context()), s.method, into)
	s.end = end

	return refusal
}
