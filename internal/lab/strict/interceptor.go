package strict

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errPanic is recorded while a panic passes through; the recovery interceptor further out makes the
// caller's answer.
var errPanic = status.Error(codes.Internal, "panic in a call")

// Unary is the interceptor of calls. Calls of other services than CSI's are not checked.
func (m *Monitor) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !Watches(info.FullMethod) {
		return next(ctx, request)
	}

	end, refusal := m.Begin(ctx, m.config.Number(ctx), info.FullMethod, request)
	if refusal != nil {
		return nil, refusal
	}

	err = errPanic
	defer func() { end(response, err) }()

	return next(ctx, request)
}

// Stream is the interceptor of streams of messages for one request.
func (m *Monitor) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !Watches(info.FullMethod) {
		return next(service, stream)
	}

	if err := m.BeginStream(stream.Context(), m.config.Number(stream.Context()), info.FullMethod); err != nil {
		return err
	}

	checked := &checkedStream{ServerStream: stream, monitor: m, method: info.FullMethod}
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

	monitor *Monitor
	method  string
	// end ends the check of the request.
	end func(response any, err error)
}

// RecvMsg implements grpc.ServerStream.
func (s *checkedStream) RecvMsg(into any) error {
	if err := s.ServerStream.RecvMsg(into); err != nil || s.end != nil {
		return err
	}

	c := &call{ctx: s.Context(), number: s.monitor.config.Number(s.Context()), method: s.method, isStream: true}
	end, refusal := s.monitor.begin(c, into)
	s.end = end

	return refusal
}
