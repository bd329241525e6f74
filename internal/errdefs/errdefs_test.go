package errdefs_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
