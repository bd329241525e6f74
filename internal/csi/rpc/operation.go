package rpc

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// VolumeCall is a call about one volume. Its work is serial with that of all
// services on the same volume. Object is the part of the volume that the call
// changes, such as a node or a path; empty means all of it.
func VolumeCall(id, object, method string, request proto.Message) operation.Call {
	return operation.Call{Key: "volume " + id, Object: object, Method: method, Request: request}
}

// Run starts or joins the operation. A panic in it is logged with its stack.
func Run[T any](ctx context.Context, log *slog.Logger, ops *operation.Group, call operation.Call,
	operate func(context.Context) (T, error),
) (T, error) {
	response, err := operation.Do(ctx, ops, call, operate)

	if panicked, ok := errors.AsType[*operation.PanicError](err); ok {
		log.Error("operation panicked", "method", call.Method, "key", call.Key,
			"panic", panicked.Value, "stack", string(panicked.Stack))
	}

	return response, err
}
