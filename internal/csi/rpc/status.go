package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
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

// Errorf returns an Error with the code; format may wrap causes with %w.
func Errorf(code codes.Code, format string, args ...any) *Error {
	return &Error{code: code, cause: fmt.Errorf(format, args...)} //nolint:err113 // the caller's format is the message
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

// Status converts err to the gRPC status error that a handler returns. A code
// that err carries already is kept; otherwise the category of err decides, and
// an error without a category is INTERNAL.
func Status(err error) error {
	if err == nil {
		return nil
	}

	if coded, ok := errors.AsType[*Error](err); ok {
		return status.Error(coded.code, err.Error())
	}

	if _, ok := status.FromError(err); ok {
		return err
	}

	return status.Error(codeOf(err), err.Error())
}

// codeOf returns the code of the first entry of codeByCause that err wraps.
func codeOf(err error) codes.Code {
	for _, each := range codeByCause {
		if errors.Is(err, each.cause) {
			return each.code
		}
	}

	return codes.Internal
}

// codeByCause is ordered: joined errors may be of several categories.
var codeByCause = []struct {
	cause error
	code  codes.Code
}{
	// Before the context's errors: if the Kubernetes API did not answer within its
	// own timeout, the deadline of the call has not passed.
	{errdefs.ErrUnavailable, codes.Unavailable},
	// A pool that failed is closed while operations still use its files.
	{fs.ErrClosed, codes.Unavailable},
	// An NFS server does not have the pool's filesystem any more, or, in a soft mount, is away.
	{unix.ESTALE, codes.Unavailable},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
	{errdefs.ErrInvalidArgument, codes.InvalidArgument},
	{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
	{errdefs.ErrNotFound, codes.NotFound},
	{errdefs.ErrOutOfRange, codes.OutOfRange},
	{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
	{errdefs.ErrAborted, codes.Aborted},
	// The filesystem of the pool does not support a file of the requested size.
	{unix.EFBIG, codes.OutOfRange},
}
