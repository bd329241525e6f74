package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestCodesHaveTheNamesOfTheSpec(t *testing.T) {
	t.Parallel()

	for number, name := range code.Code_name {
		require.Equal(t, name, rpc.CodeName(codes.Code(number)), "want: the name of code %d in the spec", number)
	}

	require.Equal(t, "Code(99)", rpc.CodeName(99), "want: an unknown code has its number")
}

// TestEachErrorHasItsCode, of those that reach a handler.
func TestEachErrorHasItsCode(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		code codes.Code
		errs []error
	}{
		{codes.Unavailable, []error{
			pool.ErrUnavailable, fs.ErrClosed, unix.ESTALE, volume.ErrClaimUnavailable,
			operation.ErrDraining, state.ErrReadOnly, errdefs.ErrUnavailable,
		}},
		{codes.DeadlineExceeded, []error{context.DeadlineExceeded}},
		{codes.Canceled, []error{context.Canceled}},
		{codes.InvalidArgument, []error{
			volume.ErrInvalidID, volume.ErrParameter, volume.ErrCapability,
			mount.ErrMountFlag, mount.ErrNotAbsolute, mount.ErrInvalidPath, mount.ErrOutsideAllowed, mount.ErrSymlink,
			kata.ErrInvalidAssignment, filesystem.ErrOption, errdefs.ErrInvalidArgument, faults.ErrRule, calls.ErrFilter,
		}},
		{codes.ResourceExhausted, []error{
			pool.ErrNoSpace, pool.ErrOvercommitted, loop.ErrNoNumber, errdefs.ErrResourceExhausted,
		}},
		{codes.NotFound, []error{pool.ErrMissing, errdefs.ErrNotFound, faults.ErrUnknown}},
		{codes.AlreadyExists, []error{errdefs.ErrAlreadyExists, faults.ErrExists}},
		{codes.Unimplemented, []error{errdefs.ErrUnimplemented}},
		{codes.OutOfRange, []error{filesystem.ErrTooSmall, unix.EFBIG, errdefs.ErrOutOfRange}},
		{codes.FailedPrecondition, []error{
			volume.ErrClaimUnreadable,
			mount.ErrWrongType, mount.ErrNotEmpty, mount.ErrBusy,
			tree.ErrMounted, pool.ErrInUse, pool.ErrNoLocks, pool.ErrTruncated, tree.ErrLeased, filecopy.ErrCloneUnsupported,
			kata.ErrUnsafeRoot, kata.ErrNestedDirectory, cgroup.ErrUnsupported, cgroup.ErrNoPod, queue.ErrUnsupported,
			filesystem.ErrGrowRefused, filesystem.ErrInUse, filesystem.ErrFrozen,
			loop.ErrImageLocked, loop.ErrNoLocks, loop.ErrNotAttached, errdefs.ErrFailedPrecondition,
		}},
		{codes.Aborted, []error{
			&operation.ConflictError{}, pool.ErrInProgress, filesystem.ErrNotFrozen, errdefs.ErrAborted,
		}},
		{codes.Internal, []error{
			errors.New("no category"), &operation.PanicError{},
			pool.ErrNotDirectory, pool.ErrControllerRunning, pool.ErrReplaced, pool.ErrReadOnly,
			pool.ErrIdentity, changedblocks.ErrNotImmutable, pool.ErrUnknown,
			state.ErrDuplicate, state.ErrNotOpen, state.ErrRecord, state.ErrTransactionOver, state.ErrNotRepairable,
			kata.ErrNoSandbox, kata.ErrUnimplemented, kata.ErrNoAnswer, kata.ErrHostPath,
			filesystem.ErrUnknown, filesystem.ErrNoSuperblock, filesystem.ErrDamaged, filesystem.ErrOtherFilesystem,
			filesystem.ErrNeedsMount, filesystem.ErrToolMissing, filesystem.ErrNotClean, filesystem.ErrReadIncomplete,
			loop.ErrNotImage, loop.ErrInUse, loop.ErrBackingUnresponsive,
			mount.ErrAttached, mount.ErrKernelUnsupported,
		}},
	} {
		for _, err := range test.errs {
			wrapped := fmt.Errorf("do something: %w", err)

			rpccode.Require(t, rpc.Status(wrapped), test.code, "%T %v", err, err)
			require.Equal(t, wrapped.Error(), status.Convert(rpc.Status(wrapped)).Message())
		}
	}
}

func TestStatusOfErrorsWithSeveralCauses(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		code codes.Code
		err  error
	}{
		{codes.Unavailable, fmt.Errorf("%w: %w", volume.ErrClaimUnavailable, context.DeadlineExceeded)},
		{codes.Unavailable, fmt.Errorf("%w: %w", pool.ErrUnavailable, pool.ErrMissing)},
		{codes.Unavailable, errors.Join(pool.ErrNoSpace, state.ErrReadOnly)},
		{codes.ResourceExhausted, errors.Join(pool.ErrNoSpace, pool.ErrInUse)},
		{codes.OutOfRange, errors.Join(filesystem.ErrTooSmall, loop.ErrNotAttached)},
		{codes.FailedPrecondition, errors.Join(filesystem.ErrFrozen, filesystem.ErrNotFrozen)},
	} {
		rpccode.Require(t, rpc.Status(test.err), test.code)
	}
}

func TestStatusKeepsACode(t *testing.T) {
	t.Parallel()

	require.NoError(t, rpc.Status(nil))

	coded := rpc.Errorf(codes.NotFound, "volume a: %w", pool.ErrInUse)
	rpccode.Require(t, rpc.Status(fmt.Errorf("expand: %w", coded)), codes.NotFound)
	require.ErrorIs(t, coded, pool.ErrInUse)

	received := status.Error(codes.Unimplemented, "unknown method")
	require.Equal(t, received, rpc.Status(received))
}
