package inflight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/inflight"
)

var errLeft = errors.New("the caller has left")

// TestStopWaitsForTheEndOfACopy: the copy has the cause, and Stop returns when it has ended and not
// before, unless its caller leaves.
func TestStopWaitsForTheEndOfACopy(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := inflight.NewCopies()
		require.NoError(t, copies.Stop(t.Context(), "a"), "want: there is nothing to stop")

		copying, end := copies.Start(t.Context(), "a")
		require.True(t, copies.Running("a"), "want: the copy runs")
		require.False(t, copies.Running("b"), "want: another copy does not run")
		require.NoError(t, copying.Err())

		leaving, leave := context.WithCancelCause(t.Context())
		leave(errLeft)
		require.ErrorIs(t, copies.Stop(leaving, "a"), errLeft, "want: Stop of a caller that has left says so")
		require.ErrorIs(t, context.Cause(copying), catalog.ErrDeleted, "want: the copy gets the cause")

		stopped := make(chan error, 1)

		go func() { stopped <- copies.Stop(t.Context(), "a") }()

		synctest.Wait()
		require.Empty(t, stopped, "want: Stop waits for the end of the copy")
		end()
		require.NoError(t, <-stopped)
		require.False(t, copies.Running("a"), "want: the copy has ended")
	})
}

// TestTheEndOfACopyLeavesItsSuccessor: a copy that was restarted goes on when the first one ends.
func TestTheEndOfACopyLeavesItsSuccessor(t *testing.T) {
	t.Parallel()

	copies := inflight.NewCopies()
	first, endFirst := copies.Start(t.Context(), "a")
	second, endSecond := copies.Start(t.Context(), "a")

	endFirst()
	require.Error(t, first.Err(), "want: the context of the first copy has ended")
	require.NoError(t, second.Err())
	require.True(t, copies.Running("a"), "want: the second copy runs")
	endSecond()
	require.False(t, copies.Running("a"), "want: no copy runs")
}

// TestWaitForACopy: the condition is evaluated at first and after each start, until it is met or the
// caller leaves.
func TestWaitForACopy(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := inflight.NewCopies()
		waiting, leave := context.WithCancelCause(t.Context())
		met, evaluated := make(chan error, 1), 0

		require.NoError(t, copies.WaitFor(waiting, func() bool { return true }), "want: a condition that is met needs no start")

		go func() {
			met <- copies.WaitFor(waiting, func() bool {
				evaluated++

				return copies.Running("c")
			})
		}()

		for turn, id := range []string{"", "a", "b"} {
			if id != "" {
				_, end := copies.Start(t.Context(), id)
				t.Cleanup(end)
			}

			synctest.Wait()
			require.Empty(t, met, "want: the condition is not met")
			require.Equal(t, turn+1, evaluated, "want: it is evaluated once for each start")
		}

		_, end := copies.Start(t.Context(), "c")
		defer end()

		require.NoError(t, <-met)

		go func() { met <- copies.WaitFor(waiting, func() bool { return false }) }()

		synctest.Wait()
		leave(errLeft)
		require.ErrorIs(t, <-met, errLeft, "want: the caller has left")
	})
}
