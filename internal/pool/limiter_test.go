package pool_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool"
)

func TestTheLimiterBoundsTheProbesOfAPool(t *testing.T) {
	t.Parallel()

	const limit = 16

	limiter := pool.NewLimiter()

	var last func()

	for range limit {
		release, err := limiter.Acquire(t.Context(), "pool")
		require.NoError(t, err)

		last = release
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := limiter.Acquire(ended, "pool")
	require.ErrorIs(t, err, pool.ErrUnreachable)
	require.ErrorIs(t, err, context.Canceled)

	_, err = limiter.Acquire(t.Context(), "another")
	require.NoError(t, err, "another pool has its own limit")

	last()

	_, err = limiter.Acquire(t.Context(), "pool")
	require.NoError(t, err, "a slot that was released is free")
}
