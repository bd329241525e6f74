package driver

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDrainDoesNotWaitForWhatHangs: a check or probe that hangs in the kernel does
// not keep the driver beyond its drain timeout.
func TestDrainDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, awaitEnd(ctx, func() {}))

	hang := make(chan struct{})
	defer close(hang)

	cancel()
	require.ErrorIs(t, awaitEnd(ctx, func() { <-hang }), errBackground)
}
