package awaitcall

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/test/await"
)

const limit = time.Millisecond

func expectNamed(t *testing.T, f *await.Failures, err error) {
	t.Helper()

	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "waited 1ms for /a/B") {
		t.Errorf("the call returned %v, want DEADLINE_EXCEEDED with the method and the limit", err)
	}

	if len(f.Messages) != 1 || !strings.Contains(f.Messages[0], "waited 1ms for /a/B") {
		t.Errorf("the failures are %q, want one with the method and the limit", f.Messages)
	}
}

func TestACallWithoutADeadlineEnds(t *testing.T) {
	t.Parallel()

	never := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		if _, set := ctx.Deadline(); set {
			t.Error("the server gets the limit as a deadline")
		}

		<-ctx.Done()

		return status.FromContextError(ctx.Err()).Err()
	}
	f := &await.Failures{TB: t}
	err := unaryWithin(f, limit)(t.Context(), "/a/B", nil, nil, nil, never)
	expectNamed(t, f, err)
}

func TestACallWithADeadlineKeepsIt(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()

	longer := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		time.Sleep(10 * limit)

		return ctx.Err()
	}
	if err := unaryWithin(t, limit)(ctx, "/a/B", nil, nil, nil, longer); err != nil {
		t.Errorf("a call whose deadline is far returned %v, want none", err)
	}
}

// silent is a stream whose server never sends a message.
type silent struct {
	grpc.ClientStream

	ctx context.Context //nolint:containedctx // a stream has one
}

func (s *silent) Context() context.Context { return s.ctx }

func (s *silent) RecvMsg(any) error {
	<-s.ctx.Done()

	return status.FromContextError(s.ctx.Err()).Err()
}

func TestAStreamWithoutADeadlineEnds(t *testing.T) {
	t.Parallel()

	open := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return &silent{ctx: ctx}, nil
	}
	f := &await.Failures{TB: t}

	stream, err := streamWithin(f, limit)(t.Context(), nil, nil, "/a/B", open)
	if err != nil {
		t.Fatalf("open the stream: %v", err)
	}

	expectNamed(t, f, stream.RecvMsg(nil))
}
