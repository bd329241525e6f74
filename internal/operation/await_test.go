package operation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

func TestAwaitReturnsTheResultOrTheCause(t *testing.T) {
	t.Parallel()

	got, err := operation.Await(t.Context(), func() (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, got, "want: the result is returned")

	errLate := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLate)

	hang := make(chan struct{})
	defer close(hang)

	require.ErrorIs(t, operation.AwaitEnd(ctx, func() { <-hang }), errLate)
}

func TestAwaitReturnsAPanic(t *testing.T) {
	t.Parallel()

	err := operation.AwaitEnd(t.Context(), func() { panic("a defect") })

	var panicked *operation.PanicError

	require.ErrorAs(t, err, &panicked)
	require.Equal(t, "a defect", panicked.Value)
	require.NotEmpty(t, panicked.Stack, "want: the panic has its stack")
}
