package operation

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/protobuf/proto"
)

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
