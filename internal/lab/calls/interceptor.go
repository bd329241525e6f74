package calls

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errPanic is recorded while a panic passes through; the recovery interceptor further out makes the
// caller's answer.
var errPanic = status.Error(codes.Internal, "panic in a call")

// Unary is the interceptor of calls. Calls of other services than CSI's are not recorded.
func (r *Recorder) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (response any, err error) {
	if !Records(info.FullMethod) {
		return next(ctx, request)
	}

	recording := r.Begin(ctx, r.config.Number(ctx), info.FullMethod)
	recording.Request(request)

	err = errPanic
	defer func() { recording.End(response, err) }()

	return next(ctx, request)
}

// Stream is the interceptor of streams of messages for one request.
func (r *Recorder) Stream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) (err error) {
	if !Records(info.FullMethod) {
		return next(service, stream)
	}

	recording := r.Begin(stream.Context(), r.config.Number(stream.Context()), info.FullMethod)

	err = errPanic
	defer func() { recording.End(nil, err) }()

	return next(service, &recordedStream{stream, recording})
}

type recordedStream struct {
	grpc.ServerStream

	recording *Recording
}

// RecvMsg implements grpc.ServerStream.
func (s *recordedStream) RecvMsg(into any) error {
	if err := s.ServerStream.RecvMsg(into); err != nil {
		return err
	}

	s.recording.Request(into)

	return nil
}

// SendMsg implements grpc.ServerStream.
func (s *recordedStream) SendMsg(message any) error {
	if err := s.ServerStream.SendMsg(message); err != nil {
		return err
	}

	s.recording.Message(message)

	return nil
}
