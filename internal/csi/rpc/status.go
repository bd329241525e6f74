package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Error is an error with its gRPC code. It wraps its cause, so that callers in
// between can test for it with errors.Is.
type Error struct {
	code  codes.Code
	cause error
}

// Errorf returns an Error with the code, which has a category; format may wrap causes with %w.
func Errorf(code codes.Code, format string, args ...any) *Error {
	return &Error{code: code, cause: errdefs.Errorf(categoryOf[code], format, args...)}
}

// Error implements error.
func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus returns the status that grpc-go sends for the error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.code, e.cause.Error()) }

// Invalid returns an INVALID_ARGUMENT error.
func Invalid(format string, args ...any) *Error {
	return Errorf(codes.InvalidArgument, format, args...)
}

// Status converts err to the gRPC status error that a handler returns: its code is that of the
// category of err (errdefs.Category), and INTERNAL without one. The status of another server is kept.
func Status(err error) error {
	if err == nil {
		return nil
	}

	category := errdefs.Category(err)
	if _, received := status.FromError(err); received && category == nil {
		return err
	}

	for code, each := range categoryOf {
		if errors.Is(category, each) {
			return status.Error(code, err.Error())
		}
	}

	return status.Error(codes.Internal, err.Error())
}

var categoryOf = map[codes.Code]error{
	codes.Unavailable: errdefs.ErrUnavailable, codes.DeadlineExceeded: context.DeadlineExceeded, codes.Canceled: context.Canceled,
	codes.InvalidArgument: errdefs.ErrInvalidArgument, codes.AlreadyExists: errdefs.ErrAlreadyExists,
	codes.ResourceExhausted: errdefs.ErrResourceExhausted, codes.NotFound: errdefs.ErrNotFound, codes.OutOfRange: errdefs.ErrOutOfRange,
	codes.FailedPrecondition: errdefs.ErrFailedPrecondition, codes.Aborted: errdefs.ErrAborted, codes.Internal: errdefs.ErrInternal,
}
