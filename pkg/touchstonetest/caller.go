package touchstonetest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// callerKey is the metadata with the line of the test that makes a call. The driver's call log keeps it.
const callerKey = "x-touchstone-caller"

func sendCaller(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	return call(withCaller(ctx), method, request, answer, conn, options...)
}

func sendStreamCaller(ctx context.Context, of *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(withCaller(ctx), of, conn, method, options...)
}

// withCaller adds the innermost line of a test file that is on the stack, if one is.
func withCaller(ctx context.Context) context.Context {
	const depth = 64

	counters := make([]uintptr, depth)
	frames := runtime.CallersFrames(counters[:runtime.Callers(1, counters)])

	for more := true; more; {
		var frame runtime.Frame

		if frame, more = frames.Next(); strings.HasSuffix(frame.File, "_test.go") {
			return metadata.AppendToOutgoingContext(ctx, callerKey, fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line))
		}
	}

	return ctx
}

// lineOf returns the line of the test that made a call, as " at FILE:LINE", "" if it is not known.
func (d *Driver) lineOf(number uint64) string {
	d.tb.Helper()

	for _, call := range d.Calls(Filter{SinceCall: max(number, 1) - 1}) {
		if call.Number == number {
			return strings.TrimSuffix(" at "+strings.Join(call.Metadata[callerKey], " "), " at ")
		}
	}

	return ""
}
