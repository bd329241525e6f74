package fork_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAttemptsAreCounted(t *testing.T) {
	retries := fork.NewRetry(3)
	require.True(t, retries.Again(), "want: another try is allowed")
	require.True(t, retries.Again(), "want: another try is allowed")
	require.False(t, retries.Again(), "want: no other try is allowed")
}

func TestAttemptsDuringAForkDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		syscall.ForkLock.Lock()

		retries := fork.NewRetry(1)

		for range 15 {
			require.True(t, retries.Again(), "want: another try is allowed")
			time.Sleep(100 * time.Millisecond)
		}

		syscall.ForkLock.Unlock()
		require.True(t, retries.Again(), "the last attempt met the child")
		require.False(t, retries.Again(), "want: no other try is allowed")
	})
}

func TestAForkThatHangsIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		syscall.ForkLock.Lock()
		defer syscall.ForkLock.Unlock()

		began := time.Now()

		for retries := fork.NewRetry(7); retries.Again(); {
			time.Sleep(100 * time.Millisecond)
		}

		require.Less(t, time.Since(began), 3*time.Second, "want: the wait ends before the fork")
	})
}

func TestRetryWhileEndsWithTheErrorTheAttemptsOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, calls := errors.New("other"), 0
		temporarily := func(last error) func() error {
			return func() error {
				calls++
				if calls%3 == 0 {
					return last
				}

				return syscall.EBUSY
			}
		}

		require.NoError(t, fork.RetryWhile(t.Context(), syscall.EBUSY, 7, temporarily(nil)))
		require.ErrorIs(t, fork.RetryWhile(t.Context(), syscall.EBUSY, 7, temporarily(other)), other)
		require.ErrorIs(t, fork.RetryWhile(t.Context(), syscall.EBUSY, 2, temporarily(nil)), syscall.EBUSY)

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond/2)
		defer cancel()

		busy := func() error { return syscall.EBUSY }
		require.ErrorIs(t, fork.RetryWhile(ctx, syscall.EBUSY, 7, busy), context.DeadlineExceeded)
	})
}
