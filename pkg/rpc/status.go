package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/operation/coalesce"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Error is an error with the gRPC code that it is to be answered with. It
// still wraps its cause, so that rooms in between can tell it.
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

// GRPCStatus makes grpc-go answer with the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.code, e.cause.Error()) }

// Invalid returns an INVALID_ARGUMENT error.
func Invalid(format string, args ...any) *Error {
	return Errorf(codes.InvalidArgument, format, args...)
}

// Status returns err as what a service method may return: as it is when it
// carries a code already, else with the code that belongs to its cause.
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

func codeOf(err error) codes.Code {
	if errors.As(err, new(*operation.ConflictError)) {
		return codes.Aborted
	}

	if errors.As(err, new(*operation.PanicError)) {
		return codes.Internal
	}

	for _, known := range causes() {
		if errors.Is(err, known.cause) {
			return known.code
		}
	}

	return codes.Internal
}

type mapping struct {
	cause error
	code  codes.Code
}

// causes is ordered: the first that an error wraps decides.
func causes() []mapping {
	return []mapping{
		// Before all that a pool may have failed with.
		{pool.ErrUnavailable, codes.Unavailable},
		// A pool that fails is closed, under the operations that are in it.
		{fs.ErrClosed, codes.Unavailable},
		// Before context's, for the call's own time is not over with it.
		{volume.ErrClaimUnanswered, codes.Unavailable},
		{volume.ErrClaimUnreadable, codes.FailedPrecondition},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{operation.ErrDraining, codes.Unavailable},
		{coalesce.ErrDraining, codes.Unavailable},
		{state.ErrReadOnly, codes.Unavailable},
		{volume.ErrHostileID, codes.InvalidArgument},
		{volume.ErrParameter, codes.InvalidArgument},
		{volume.ErrCapability, codes.InvalidArgument},
		{mount.ErrFlag, codes.InvalidArgument},
		{mount.ErrRelative, codes.InvalidArgument},
		{mount.ErrPath, codes.InvalidArgument},
		{mount.ErrOutside, codes.InvalidArgument},
		{mount.ErrSymlink, codes.InvalidArgument},
		{mount.ErrWrongType, codes.FailedPrecondition},
		{mount.ErrNotEmpty, codes.FailedPrecondition},
		{mount.ErrBusy, codes.FailedPrecondition},
		{pool.ErrNoSpace, codes.ResourceExhausted},
		{pool.ErrOvercommitted, codes.ResourceExhausted},
		{pool.ErrMissing, codes.NotFound},
		{pool.ErrInMaking, codes.Aborted},
		{pool.ErrMounted, codes.FailedPrecondition},
		{pool.ErrInUse, codes.FailedPrecondition},
		{pool.ErrNoLocks, codes.FailedPrecondition},
		{pool.ErrLeased, codes.FailedPrecondition},
		{pool.ErrNotInstant, codes.FailedPrecondition},
		{kata.ErrAssignment, codes.InvalidArgument},
		{kata.ErrUnsafeRoot, codes.FailedPrecondition},
		{kata.ErrNested, codes.FailedPrecondition},
		{cgroup.ErrInfeasible, codes.FailedPrecondition},
		{cgroup.ErrNoPod, codes.FailedPrecondition},
		{filesystem.ErrGrowRefused, codes.FailedPrecondition},
		{filesystem.ErrTooSmall, codes.OutOfRange},
		{filesystem.ErrOption, codes.InvalidArgument},
		{filesystem.ErrInUse, codes.FailedPrecondition},
		{filesystem.ErrFrozen, codes.FailedPrecondition},
		{filesystem.ErrNotFrozen, codes.Aborted},
		{loop.ErrImageLocked, codes.FailedPrecondition},
		{loop.ErrNoLocks, codes.FailedPrecondition},
		{loop.ErrNotAttached, codes.FailedPrecondition},
		{loop.ErrNoNumber, codes.ResourceExhausted},
		{unix.EFBIG, codes.OutOfRange},
	}
}
