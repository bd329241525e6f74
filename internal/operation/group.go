package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
)

// Call identifies an operation, so that a retry can be distinguished from another
// call.
type Call struct {
	// Key is what work is serial for.
	Key string
	// Object is the part of Key that the call changes: a node, a target path.
	// Empty means the whole of it.
	Object string
	// Method is the RPC's name.
	Method string
	// Request distinguishes a retry from a conflict.
	Request proto.Message
	// Exclusive means that the operation joins none, and that none joins it: it is queued behind the
	// operations that its object has.
	Exclusive bool
}

// Group holds the operations that are queued or running. The zero value is not
// usable; see NewGroup.
type Group struct {
	life     *Lifetime
	mu       sync.Mutex
	queues   map[string][]*operation
	draining bool
}

type operation struct {
	call Call
	run  func(context.Context) (any, error)
	// values carries the first caller's request-scoped values, such as its
	// logger, without its deadline.
	values context.Context //nolint:containedctx // see above
	// span is the operation's own, or one that records nothing.
	span   trace.Span
	done   chan struct{}
	result any
	err    error
}

// groupKey is the key of the group that a context's operation belongs to.
type groupKey struct{}

// NewGroup returns a group without operations.
func NewGroup() *Group { return &Group{life: NewLifetime(), queues: map[string][]*operation{}} }

// Do runs operate for call, or joins the identical operation that is already
// queued or running. It returns the operation's result, or ctx's error once
// ctx ends: the operation then goes on, but it is not begun for a ctx that has
// ended already. The context that operate gets ends only when Drain gives up.
//
// An operation may run others of the same group, on other keys, with the context
// that it was given: they belong to it, so they start also while the group
// drains. Nesting keys in one order only cannot deadlock.
//
// Errors of its own: *ConflictError, *PanicError, ErrDraining.
func Do[T any](ctx context.Context, g *Group, call Call, operate func(context.Context) (T, error)) (T, error) {
	var none T

	op, err := g.joinOrStart(ctx, call, func(ctx context.Context) (any, error) { return operate(ctx) })
	if err != nil {
		return none, err
	}

	select {
	case <-op.done:
	case <-ctx.Done():
		return none, fmt.Errorf("%s for %s goes on without its caller: %w", call.Method, call.Key, context.Cause(ctx))
	}

	if op.err != nil {
		return none, op.err
	}

	result, ok := op.result.(T)
	if !ok {
		return none, fmt.Errorf("%w: %s for %s gave a %T, want a %T", errResult, call.Method, call.Key, op.result, none)
	}

	return result, nil
}

// Start is Do without waiting: when it returns, the operation is queued, and later
// calls with the same key follow it. operate reports its failure itself.
func Start(ctx context.Context, g *Group, call Call, operate func(context.Context)) error {
	_, err := g.joinOrStart(ctx, call, func(ctx context.Context) (any, error) {
		operate(ctx)

		return struct{}{}, nil
	})

	return err
}

// Drain refuses new operations and waits for those that are queued or running.
// When ctx ends first they are cancelled, and Drain returns ctx's error
// without waiting for them any longer.
func (g *Group) Drain(ctx context.Context) error {
	g.mu.Lock()
	g.draining = true
	g.mu.Unlock()

	if err := g.life.Drain(ctx); err != nil {
		return fmt.Errorf("operations are still running: %w", err)
	}

	return nil
}

// Len returns how many operations are queued or running.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()

	count := 0
	for _, queue := range g.queues {
		count += len(queue)
	}

	return count
}

// Busy says whether an operation for key is queued or running.
func (g *Group) Busy(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return len(g.queues[key]) > 0
}

func (g *Group) joinOrStart(ctx context.Context, call Call, run func(context.Context) (any, error)) (*operation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// A call whose caller has left must not begin behind the caller's next one,
	// and undo it: requests reach a busy server's handlers out of order. Under the
	// lock, so that nothing comes between the look and the queue.
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s for %s was not begun, its caller has left: %w", call.Method, call.Key, context.Cause(ctx))
	}

	queue := g.queues[call.Key]

	// Only the newest operation on the same object may be joined: behind an
	// older one something else is already waiting to change it again.
	for _, queued := range slices.Backward(queue) {
		other := queued.call
		if other.Object != call.Object && other.Object != "" && call.Object != "" {
			continue
		}

		if other.Method != call.Method || other.Exclusive || call.Exclusive {
			break
		}

		if other.Object == call.Object && proto.Equal(other.Request, call.Request) {
			trace.SpanFromContext(ctx).AddLink(trace.Link{SpanContext: queued.span.SpanContext()})

			return queued, nil
		}

		return nil, &ConflictError{Key: call.Key, Object: call.Object, Method: other.Method}
	}

	if g.draining && ctx.Value(groupKey{}) != g {
		return nil, ErrDraining
	}

	values, span := startSpan(context.WithoutCancel(ctx), call)
	op := &operation{call: call, run: run, values: values, span: span, done: make(chan struct{})}
	g.queues[call.Key] = append(queue, op)
	g.life.Running.Add(1)

	if len(queue) == 0 {
		go g.runQueue(op) //nolint:contextcheck // an operation outlives its callers
	}

	return op, nil
}

// startSpan begins the span of an operation as a child of the call that begins it, if that is
// traced. It begins when the operation is queued, so that its wait is seen.
func startSpan(ctx context.Context, call Call) (context.Context, trace.Span) {
	caller := trace.SpanFromContext(ctx)
	if !caller.IsRecording() {
		return ctx, caller
	}

	//nolint:spancheck // execute ends it
	return caller.TracerProvider().Tracer("touchstone/operation").Start(ctx, "operation "+call.Method,
		trace.WithAttributes(attribute.String("touchstone.key", call.Key), attribute.String("touchstone.object", call.Object)))
}

// runQueue runs op and then the operations that were queued after it.
func (g *Group) runQueue(op *operation) {
	for op != nil {
		op.execute(g)
		op = g.finish(op)
	}
}

func (g *Group) finish(op *operation) *operation {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.life.Running.Done()

	queue := g.queues[op.call.Key][1:]
	close(op.done)

	if len(queue) == 0 {
		delete(g.queues, op.call.Key)

		return nil
	}

	g.queues[op.call.Key] = queue

	return queue[0]
}

func (op *operation) execute(g *Group) {
	op.result, op.err = Run(context.WithValue(op.values, groupKey{}, g), g.life, op.run)

	if op.err != nil {
		op.span.SetStatus(codes.Error, op.err.Error())
	}

	op.span.End()
}

// VolumeCall is a call about one volume. Its work is serial with that of all
// services on the same volume. Object is the part of the volume that the call
// changes, such as a node or a path; empty means all of it.
func VolumeCall(id, object, method string, request proto.Message) Call {
	return Call{Key: "volume " + id, Object: object, Method: method, Request: request}
}

// DoLogged is Do, and logs a panic of the operation with its stack.
func DoLogged[T any](ctx context.Context, log *slog.Logger, ops *Group, call Call,
	operate func(context.Context) (T, error),
) (T, error) {
	response, err := Do(ctx, ops, call, operate)

	if panicked, ok := errors.AsType[*PanicError](err); ok {
		log.Error("operation panicked", "method", call.Method, "key", call.Key,
			"panic", panicked.Value, "stack", string(panicked.Stack))
	}

	return response, err
}
