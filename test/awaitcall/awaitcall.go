// Package awaitcall bounds the calls of tests, as package await bounds their other waits.
package awaitcall

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limit is the limit of a call whose context has no deadline.
const Limit = 80 * time.Second

// errLate is the cause of the end of a call's context at the limit.
var errLate = errors.New("the call's limit is over")

// Options gives each call of a client whose context has no deadline a limit: the call
// ends then, and the test fails with the method's name. The server does not get the limit,
// since a deadline may change what it does.
func Options(tb testing.TB) []grpc.DialOption {
	tb.Helper()

	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(unaryWithin(tb, Limit)),
		grpc.WithChainStreamInterceptor(streamWithin(tb, Limit)),
	}
}

func unaryWithin(tb testing.TB, limit time.Duration) grpc.UnaryClientInterceptor {
	tb.Helper()

	return func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		ctx, end := within(ctx, tb, limit, method)
		defer end()

		return named(ctx, invoke(ctx, method, request, answer, conn, options...), limit, method)
	}
}

func streamWithin(tb testing.TB, limit time.Duration) grpc.StreamClientInterceptor {
	tb.Helper()

	return func(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		open grpc.Streamer, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		ctx, end := within(ctx, tb, limit, method)

		stream, err := open(ctx, description, conn, method, options...)
		if err != nil {
			end()

			return nil, named(ctx, err, limit, method)
		}

		context.AfterFunc(stream.Context(), end) // gRPC ends it with the stream

		return &namedStream{stream, ctx, limit, method}, nil
	}
}

// within cancels the context and fails the test at the limit, unless the context has
// a deadline.
//
//nolint:thelper // F.Helper panics within a fuzz target
func within(ctx context.Context, tb testing.TB, limit time.Duration, method string) (limited context.Context, end func()) {
	if _, set := ctx.Deadline(); set {
		return ctx, func() {}
	}

	limited, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(limit, func() {
		if limited.Err() == nil {
			fail(tb, limit, method)
			cancel(errLate)
		}
	})

	return limited, func() { late.Stop(); cancel(nil) }
}

// fail leaves the failure to the call's error within a fuzz target, where testing.F
// panics.
//
//nolint:thelper // F.Helper panics there, too
func fail(tb testing.TB, limit time.Duration, method string) {
	if _, fuzzing := tb.(*testing.F); !fuzzing {
		tb.Errorf("waited %s for %s", limit, method)
	}
}

// named says that the limit ended a call.
func named(ctx context.Context, err error, limit time.Duration, method string) error {
	if err == nil || !errors.Is(context.Cause(ctx), errLate) {
		return err
	}

	return status.Errorf(codes.DeadlineExceeded, "waited %s for %s: %v", limit, method, err)
}

type namedStream struct {
	grpc.ClientStream

	ctx    context.Context //nolint:containedctx // a stream has one
	limit  time.Duration
	method string
}

func (s *namedStream) RecvMsg(message any) error {
	return named(s.ctx, s.ClientStream.RecvMsg(message), s.limit, s.method)
}
