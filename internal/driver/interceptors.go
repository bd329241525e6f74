package driver

import (
	"cmp"
	"context"
	"log/slog"
	"path"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// guard is the chain of interceptors of every call, from the outside in: observe
// (metrics and log), those of the lab (call log, checks of the CO, fault rules), refuse what is not
// advertised, check the limits, pass the gate, wait until a list may be answered. All of them are
// within recovery from panics.
type guard struct {
	log     *slog.Logger
	metrics metrics.CSIMetricsManager
	// durations has the same calls in finer buckets.
	durations *prometheus.HistogramVec
	gate      *gate
	lists     *listLimiter
	codec     *codec
	calls     atomic.Uint64
	// capabilities are the advertised ones; other RPCs are refused.
	capabilities capability.Set
	lab          hooks
	// outer and inner are around and within those of the lab.
	outer, inner []grpc.UnaryServerInterceptor
}

func (g *guard) options() []grpc.ServerOption {
	recovered := recovery.WithRecoveryHandlerContext(g.recovered)
	recoverUnary, recoverStream := recovery.UnaryServerInterceptor(recovered), recovery.StreamServerInterceptor(recovered)
	// Each interceptor is within recovery, and those outside of others have the response to a panic.
	unary := append([]grpc.UnaryServerInterceptor{recoverUnary, g.observe, recoverUnary}, g.outer...)
	streams := []grpc.StreamServerInterceptor{recoverStream, g.observeStream, recoverStream}

	// Metrics and log have what the caller gets.
	for _, each := range g.lab.parts {
		unary, streams = append(unary, each.Unary), append(streams, each.Stream)
	}

	unary = append(append(unary, g.inner...), recoverUnary, g.admit)

	return append(append([]grpc.ServerOption{grpc.ForceServerCodecV2(g.codec)}, g.lab.options...),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(append(streams, recoverStream, g.admitStream)...))
}

func (g *guard) observe(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	// Here, as any interceptor further in may refuse or replace the request.
	ctx = context.WithValue(g.number(ctx, info.FullMethod), undecodedKey{}, g.codec.takeProblem(request))
	started := time.Now()

	if g.log.Enabled(ctx, LevelMessages) {
		g.log.Log(ctx, LevelMessages, "call begins", "message", stripped{request})
	}

	response, err := next(ctx, request)
	g.finish(ctx, info.FullMethod, exchange{request, response, err}, time.Since(started))

	return response, err
}

func (g *guard) observeStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx := g.number(stream.Context(), info.FullMethod)
	started := time.Now()
	guarded := &guardedStream{ServerStream: stream, ctx: ctx, guard: g}
	err := next(service, guarded)
	g.finish(ctx, info.FullMethod, exchange{guarded.request, nil, err}, time.Since(started))

	return err
}

// admit refuses what no handler has to see, and makes the status of the handler's error.
func (g *guard) admit(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	undecoded, _ := ctx.Value(undecodedKey{}).(error)

	// Before the gate: an invalid request need not wait.
	if err := cmp.Or(undecoded, g.serves(info.FullMethod), checkLimits(request)); err != nil {
		return nil, err
	}

	if err := g.gate.pass(ctx, info.FullMethod); err != nil {
		return nil, err
	}

	release, err := g.lists.acquire(ctx, request)
	if err != nil {
		return nil, err
	}

	if g.lab.holdsResponses {
		defer release()
	}

	response, err := next(ctx, request)
	if err != nil {
		return response, rpc.Status(err)
	}

	if len(g.lab.parts) > 0 || g.outer != nil || g.inner != nil || g.log.Enabled(ctx, LevelMessages) {
		response = readable(response)
	}

	return response, nil
}

// readable returns the response with all its fields: those that many volumes of a list share are encoded
// already, as only the wire needs them.
func readable(response any) any {
	listed, ok := response.(*csi.ListVolumesResponse)
	if !ok {
		return response
	}

	again := &csi.ListVolumesResponse{}

	text, err := proto.Marshal(listed)
	if err != nil || proto.Unmarshal(text, again) != nil {
		return response // it cannot be sent either
	}

	return again
}

func (g *guard) admitStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.serves(info.FullMethod); err != nil {
		return err
	}

	if err := g.gate.pass(stream.Context(), info.FullMethod); err != nil {
		return err
	}

	return rpc.Status(next(service, stream))
}

func (g *guard) serves(method string) error {
	if lacking, unserved := g.capabilities.DisabledBy(method); unserved {
		return status.Errorf(codes.Unimplemented, "%s is not served: the capability %s is disabled (--disable-capability)",
			path.Base(method), lacking)
	}

	return nil
}

// recovered turns a panic into INTERNAL. The stack is only logged: a CO may show the
// message to its users.
func (g *guard) recovered(ctx context.Context, value any) error {
	g.log.ErrorContext(ctx, "panic in a call", "panic", value, "stack", string(debug.Stack()))

	id, _ := ctx.Value(callKey{}).(call)

	return status.Errorf(codes.Internal, "defect of the driver; see call %d in its log", id.number)
}

func (g *guard) number(ctx context.Context, method string) context.Context {
	return context.WithValue(ctx, callKey{}, call{number: g.calls.Add(1), method: method})
}

// exchange has a call's data for its log line. A stream's response is nil, and its
// request is the first message.
type exchange struct {
	request, response any
	err               error
}

// finish adds a call to the metrics and logs it.
func (g *guard) finish(ctx context.Context, method string, done exchange, took time.Duration) {
	g.metrics.RecordMetrics(method, done.err, took)
	g.durations.WithLabelValues(path.Base(method), status.Code(done.err).String()).Observe(took.Seconds())

	level := levelOf(method, done.err)
	if !g.log.Enabled(ctx, level) {
		return
	}

	attrs := append([]slog.Attr{slog.String("code", status.Code(done.err).String()), slog.Duration("took", took)},
		subjectOf(done.request)...)

	if done.err != nil {
		attrs = append(attrs, slog.String("error", status.Convert(done.err).Message()))
		if rows := specRows(method, status.Code(done.err)); rows != "" {
			attrs = append(attrs, slog.String("spec", rows))
		}
	} else {
		if kind, id := rpc.Created(done.response); kind != "" {
			attrs = append(attrs, slog.String(kind, id))
		}

		if done.response != nil && g.log.Enabled(ctx, LevelMessages) {
			attrs = append(attrs, slog.Any("message", stripped{done.response}))
		}
	}

	g.log.LogAttrs(ctx, level, "call", attrs...)
}

// specRows returns the ids of the rows of docs/spec.md for the code of a call that failed, separated
// by spaces: those of the RPC, or else those of all RPCs.
func specRows(method string, code codes.Code) string {
	return cmp.Or(errorRows[path.Base(method)][code], errorRows[""][code])
}

// ownReads are the methods of Touchstone's own services that change nothing.
var ownReads = []string{"Report", "List", "Log", "Counts", "Follow", "Wait"}

// levelOf returns the log level of a call's end: error for failures of the driver,
// lower levels for those of the request, and the lowest for success.
func levelOf(method string, err error) slog.Level {
	switch status.Code(err) {
	case codes.OK:
		if capability.Reads(method) || slices.Contains(ownReads, path.Base(method)) {
			return LevelReads
		}

		return LevelCalls
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// guardedStream checks and logs the messages received on a stream.
type guardedStream struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // a stream returns its context by a method
	guard *guard
	// request is the first that came in.
	request any
}

// Context implements grpc.ServerStream.
func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *guardedStream) RecvMsg(into any) error {
	err := s.ServerStream.RecvMsg(into)
	undecoded := s.guard.codec.takeProblem(into) // also of a message that grpc-go refuses after its decoding

	if err != nil {
		return err
	}

	if s.request == nil {
		s.request = into
	}

	if s.guard.log.Enabled(s.ctx, LevelMessages) {
		s.guard.log.Log(s.ctx, LevelMessages, "call begins", "message", stripped{into})
	}

	return cmp.Or(undecoded, checkLimits(into))
}
