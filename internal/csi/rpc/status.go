package rpc

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Errorf returns an error of the category of the code, which must be a key of categories; format may wrap
// causes with %w.
func Errorf(c codes.Code, format string, args ...any) error {
	return errdefs.Errorf(categories[c], format, args...)
}

// Invalid returns an INVALID_ARGUMENT error.
func Invalid(format string, args ...any) error {
	return errdefs.Errorf(errdefs.ErrInvalidArgument, format, args...)
}

// Status converts the error of a handler to the gRPC status error that its caller gets: its code is that of
// the category of err (errdefs.Category), and INTERNAL without one. A status is kept. The interceptors call
// it, for all handlers.
func Status(err error) error {
	category := errdefs.Category(err)
	if _, received := status.FromError(err); received && category == nil {
		return err // also nil
	}

	for c, each := range categories {
		if errors.Is(category, each) {
			return status.Error(c, err.Error())
		}
	}

	return status.Error(codes.Internal, err.Error())
}

// CodeName returns a code as the CSI spec writes it, such as NOT_FOUND.
func CodeName(c codes.Code) string {
	if name, known := code.Code_name[int32(c)]; known {
		return name
	}

	return c.String()
}

var categories = map[codes.Code]error{
	codes.Unavailable: errdefs.ErrUnavailable, codes.DeadlineExceeded: context.DeadlineExceeded, codes.Canceled: context.Canceled,
	codes.InvalidArgument: errdefs.ErrInvalidArgument, codes.AlreadyExists: errdefs.ErrAlreadyExists,
	codes.ResourceExhausted: errdefs.ErrResourceExhausted, codes.NotFound: errdefs.ErrNotFound, codes.OutOfRange: errdefs.ErrOutOfRange,
	codes.FailedPrecondition: errdefs.ErrFailedPrecondition, codes.Aborted: errdefs.ErrAborted,
	codes.Unimplemented: errdefs.ErrUnimplemented, codes.Internal: errdefs.ErrInternal,
}
