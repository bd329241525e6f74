package csiclient

import (
	"context"
	"errors"
	"io"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// CallError is the error of every failed call: the call's name and the driver's status.
// status.Code and status.FromError unwrap it.
type CallError struct {
	// RPC is the call's name in the spec.
	RPC    string
	status *status.Status
}

func (e *CallError) Error() string {
	return e.RPC + ": " + rpc.CodeName(e.status.Code()) + ": " + e.status.Message()
}

// GRPCStatus returns the driver's status.
func (e *CallError) GRPCStatus() *status.Status { return e.status }

func nameFailedCalls(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := invoke(ctx, method, req, reply, conn, opts...); err != nil {
		return &CallError{RPC: path.Base(method), status: status.Convert(err)}
	}

	return nil
}

func nameFailedStreams(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, &CallError{RPC: path.Base(method), status: status.Convert(err)}
	}

	return &namedStream{ClientStream: stream, rpc: path.Base(method)}, nil
}

// namedStream adds the name of its call to a stream's errors, most of which come with
// RecvMsg and not with the call.
type namedStream struct {
	grpc.ClientStream

	rpc string
}

func (s *namedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}

	return &CallError{RPC: s.rpc, status: status.Convert(err)}
}
