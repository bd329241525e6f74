package errdefs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

func TestNewReturnsAnErrorOfItsCategory(t *testing.T) {
	t.Parallel()

	inUse := errdefs.New(errdefs.ErrFailedPrecondition, "the device is in use")
	wrapped := fmt.Errorf("detach: %w", inUse)

	require.ErrorIs(t, wrapped, inUse)
	require.ErrorIs(t, wrapped, errdefs.ErrFailedPrecondition)
	require.NotErrorIs(t, wrapped, errdefs.ErrAborted)
	require.EqualError(t, wrapped, "detach: the device is in use", "the message does not repeat the category")
}

func TestErrorsWithTheSameMessageAreDistinct(t *testing.T) {
	t.Parallel()

	one := errdefs.New(errdefs.ErrNotFound, "missing")
	other := errdefs.New(errdefs.ErrNotFound, "missing")

	require.NotErrorIs(t, one, other)
}

// TestWrapfPutsItsMessageBeforeAnError, which stays itself, and makes none.
func TestWrapfPutsItsMessageBeforeAnError(t *testing.T) {
	t.Parallel()

	wrapped := func(err error) error {
		errdefs.Wrapf(&err, "volume %s of %d%%", "a", 5)

		return err
	}

	require.NoError(t, wrapped(nil))
	require.EqualError(t, wrapped(fs.ErrNotExist), "volume a of 5%: file does not exist")
	require.ErrorIs(t, wrapped(fs.ErrNotExist), fs.ErrNotExist)
}

// TestTheOutermostCategoryDecides, and of joined errors their categories, in any order.
func TestTheOutermostCategoryDecides(t *testing.T) {
	t.Parallel()

	inUse, missing := errdefs.New(errdefs.ErrFailedPrecondition, "in use"), errdefs.New(errdefs.ErrNotFound, "missing")
	unknown := errors.New("unknown")

	for name, test := range map[string]struct{ err, want error }{
		"none":                    {nil, nil},
		"unknown":                 {fmt.Errorf("do: %w", unknown), nil},
		"new":                     {inUse, errdefs.ErrFailedPrecondition},
		"wrapped":                 {fmt.Errorf("do: %w", inUse), errdefs.ErrFailedPrecondition},
		"given":                   {errdefs.Errorf(errdefs.ErrAlreadyExists, "do"), errdefs.ErrAlreadyExists},
		"given to another's":      {fmt.Errorf("do: %w", errdefs.Errorf(errdefs.ErrAborted, "do: %w", inUse)), errdefs.ErrAborted},
		"given to none":           {errdefs.Errorf(errdefs.ErrInternal, "do: %w", unknown), errdefs.ErrInternal},
		"joined":                  {errors.Join(inUse, missing), errdefs.ErrNotFound},
		"joined, in other order":  {errors.Join(missing, inUse), errdefs.ErrNotFound},
		"joined with a given one": {errors.Join(missing, errdefs.Errorf(errdefs.ErrInternal, "damaged")), errdefs.ErrInternal},
		"joined after it":         {errors.Join(fmt.Errorf("do: %w", errdefs.Errorf(errdefs.ErrInternal, "damaged")), missing), errdefs.ErrInternal},
		"two given ones": {
			errors.Join(errdefs.Errorf(errdefs.ErrAborted, "a"), errdefs.Errorf(errdefs.ErrNotFound, "b"), errdefs.ErrUnavailable),
			errdefs.ErrNotFound,
		},
		"joined with none":      {errors.Join(unknown, inUse, unknown), errdefs.ErrFailedPrecondition},
		"joined unknown ones":   {errors.Join(unknown, unknown), nil},
		"wrapped by a category": {fmt.Errorf("%w: %w", errdefs.ErrUnavailable, missing), errdefs.ErrUnavailable},
		"a deadline":            {fmt.Errorf("do: %w", context.DeadlineExceeded), context.DeadlineExceeded},
		"canceled":              {&fs.PathError{Err: context.Canceled}, context.Canceled},
		"a closed file":         {&fs.PathError{Err: fs.ErrClosed}, errdefs.ErrUnavailable},
		"a stale file":          {os.NewSyscallError("stat", unix.ESTALE), errdefs.ErrUnavailable},
		"a file too large":      {unix.EFBIG, errdefs.ErrOutOfRange},
		"another errno":         {unix.EIO, nil},
	} {
		require.Equal(t, test.want, errdefs.Category(test.err), name)
	}

	given := errdefs.Errorf(errdefs.ErrAborted, "do: %w", inUse)
	require.EqualError(t, given, "do: in use", "the message does not repeat the category")
	require.ErrorIs(t, given, inUse)
	require.ErrorIs(t, given, errdefs.ErrAborted)
	require.NotErrorIs(t, given, errdefs.ErrNotFound)
}
