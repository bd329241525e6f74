// Package jsoncall implements gRPC calls without generated code: the response is JSON
// in a google.protobuf.BytesValue, which is readable with grpcurl. The driver serves
// its own services (health, progress, direct volumes) with them on the CSI socket.
package jsoncall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Method is a call of the service of that name. R is what it takes; what answer
// returns is encoded. Its errors have a category, of which the server's interceptors make the gRPC code.
func Method[R any, P interface {
	*R
	proto.Message
}](service, name string, answer func(ctx context.Context, request P) (any, error)) grpc.MethodDesc {
	call := func(ctx context.Context, request any) (any, error) {
		given, _ := request.(P)

		value, err := answer(ctx, given)
		if err != nil {
			return nil, err
		}

		encoded, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode the answer of %s: %w", FullMethod(service, name), err)
		}

		return wrapperspb.Bytes(encoded), nil
	}

	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(
			server any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			request := P(new(R))
			if err := decode(request); err != nil {
				return nil, err
			}

			if intercept == nil {
				return call(ctx, request)
			}

			return intercept(ctx, request, &grpc.UnaryServerInfo{Server: server, FullMethod: FullMethod(service, name)}, call)
		},
	}
}

// Stream is a call of that name with a stream of answers: answer sends each by send, whose error
// ends the call.
func Stream[R any, P interface {
	*R
	proto.Message
}](service, name string, answer func(ctx context.Context, request P, send func(any) error) error) grpc.StreamDesc {
	return grpc.StreamDesc{
		StreamName: name, ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			request := P(new(R))
			if err := stream.RecvMsg(request); err != nil {
				return err
			}

			return answer(stream.Context(), request, func(value any) error {
				encoded, err := json.Marshal(value)
				if err != nil {
					return fmt.Errorf("encode an answer of %s: %w", FullMethod(service, name), err)
				}

				return stream.SendMsg(wrapperspb.Bytes(encoded))
			})
		},
	}
}

// Register registers a service with these methods.
func Register(server grpc.ServiceRegistrar, service string, methods ...grpc.MethodDesc) {
	RegisterStreams(server, service, methods)
}

// RegisterStreams is Register for a service that has streams too.
func RegisterStreams(server grpc.ServiceRegistrar, service string, methods []grpc.MethodDesc, streams ...grpc.StreamDesc) {
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: methods, Streams: streams}, nil)
}

// FullMethod is the name that a call has on the wire.
func FullMethod(service, name string) string { return "/" + service + "/" + name }

// Ask makes the call and decodes its answer into a value. A server without the
// service answers UNIMPLEMENTED.
func Ask(ctx context.Context, connection grpc.ClientConnInterface, method string, request proto.Message, into any,
	options ...grpc.CallOption,
) error {
	// A report of thousands of volumes exceeds grpc's default limit of 4 MiB.
	options = append([]grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32)}, options...)
	answer := &wrapperspb.BytesValue{}

	if err := connection.Invoke(ctx, method, request, answer, options...); err != nil {
		return err
	}

	if err := json.Unmarshal(answer.GetValue(), into); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", method, err)
	}

	return nil
}

// Follow makes a call with a stream of answers, and yields each, decoded, until the stream ends, or
// yield returns an error, which it returns.
func Follow[T any](ctx context.Context, connection grpc.ClientConnInterface, method string, request proto.Message,
	yield func(T) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return err
	}

	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err // at EOF, RecvMsg has the status
	}

	if err := stream.CloseSend(); err != nil {
		return err
	}

	for {
		answer := &wrapperspb.BytesValue{}

		switch err := stream.RecvMsg(answer); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}

		var value T
		if err := json.Unmarshal(answer.GetValue(), &value); err != nil {
			return fmt.Errorf("decode an answer of %s: %w", method, err)
		}

		if err := yield(value); err != nil {
			return err
		}
	}
}
