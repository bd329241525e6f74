package lab

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

// Interceptors returns those of what is enabled, from the outside in. The recorder is outside of everything
// that may change a response, so that it has what the CO got, and so is the monitor, which also refuses
// before anything else can have an effect.
func (l *Lab) Interceptors() (unary []grpc.UnaryServerInterceptor, streams []grpc.StreamServerInterceptor) {
	if l.recorder != nil {
		unary, streams = append(unary, l.record), append(streams, l.recordStream)
	}

	if l.monitor != nil {
		unary, streams = append(unary, l.check), append(streams, l.checkStream)
	}

	if l.injector != nil {
		unary, streams = append(unary, l.injector.Unary), append(streams, l.injector.Stream)
	}

	return unary, streams
}

// Options returns options of the server: fault rules have to reach the connection of a call.
func (l *Lab) Options() []grpc.ServerOption {
	if l.injector == nil {
		return nil
	}

	return []grpc.ServerOption{grpc.Creds(faults.Credentials())}
}

// errPanic is what the CO gets for a panic, which passes through these interceptors.
var errPanic = status.Error(codes.Internal, "panic in a call")

func (l *Lab) record(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !calls.Records(info.FullMethod) {
		return next(ctx, request)
	}

	recording := l.recorder.Begin(ctx, l.config.Number(ctx), info.FullMethod)
	recording.Request(request)

	err = errPanic
	defer func() { recording.End(response, err) }()

	return next(ctx, request)
}

func (l *Lab) recordStream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) (err error) {
	if !calls.Records(info.FullMethod) {
		return next(service, stream)
	}

	recording := l.recorder.Begin(stream.Context(), l.config.Number(stream.Context()), info.FullMethod)

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

func (l *Lab) check(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !strict.Watches(info.FullMethod) {
		return next(ctx, request)
	}

	end, refusal := l.monitor.Begin(ctx, l.config.Number(ctx), info.FullMethod, request)
	if refusal != nil {
		return nil, refusal
	}

	err = errPanic
	defer func() { end(response, err) }()

	return next(ctx, request)
}

func (l *Lab) checkStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !strict.Watches(info.FullMethod) {
		return next(service, stream)
	}

	if err := l.monitor.BeginStream(stream.Context(), l.config.Number(stream.Context()), info.FullMethod); err != nil {
		return err
	}

	checked := &checkedStream{ServerStream: stream, lab: l, method: info.FullMethod}
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

	lab    *Lab
	method string
	// end ends the check of the request.
	end func(response any, err error)
}

// RecvMsg implements grpc.ServerStream.
func (s *checkedStream) RecvMsg(into any) error {
	if err := s.ServerStream.RecvMsg(into); err != nil || s.end != nil {
		return err
	}

	end, refusal := s.lab.monitor.Begin(s.Context(), s.lab.config.Number(s.Context()), s.method, into)
	s.end = end

	return refusal
}
