package removal_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/removal"
)

// TestAttemptsKeepTheirBackOff lets a removal fail for a day: the pauses grow up to a limit, also when
// the removal is scheduled again, and begin with the first one after a success.
func TestAttemptsKeepTheirBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})

		var (
			began    = time.Now()
			mutex    sync.Mutex
			attempts []time.Duration
			works    bool
		)

		// set begins another part of the test, whose attempts are its own.
		set := func(succeeds bool) {
			mutex.Lock()
			defer mutex.Unlock()

			works, attempts = succeeds, nil
		}

		made := func() []time.Duration {
			mutex.Lock()
			defer mutex.Unlock()

			return slices.Clone(attempts)
		}

		task := removal.Task{Pool: "p", Object: "volume v", Remove: func(context.Context) error {
			mutex.Lock()
			defer mutex.Unlock()

			attempts = append(attempts, time.Since(began))

			if works {
				return nil
			}

			return errStuck
		}}

		go func() {
			defer close(ended)
			q.Run(ctx)
		}()

		q.Add(task)
		time.Sleep(24 * time.Hour)
		synctest.Wait()

		failed := made()
		pauses := make([]time.Duration, 0, len(failed))

		for i := 1; i < len(failed); i++ {
			pauses = append(pauses, failed[i]-failed[i-1])
		}

		require.Greater(t, len(pauses), 10, "it is retried all day")

		longest := pauses[len(pauses)-1]
		require.GreaterOrEqual(t, longest, 10*time.Second, "the longest pause")

		for i, pause := range pauses[1:] {
			require.Equal(t, min(2*pauses[i], longest), pause, "the pause after one of %s", pauses[i])
		}

		require.Positive(t, pauses[0], "want: there is a pause before the second attempt")
		require.Less(t, pauses[0], longest, "want: the first pause is not the longest")

		// Another task of the same object does not shorten the pause.
		q.Add(task)
		time.Sleep(pauses[0])
		synctest.Wait()
		require.LessOrEqual(t, len(made()), len(failed)+1, "attempts right after it was scheduled again")

		set(true)
		time.Sleep(longest)
		synctest.Wait()
		require.Zero(t, q.Len(), "it has succeeded")

		// After a success the pauses are short again.
		set(false)
		q.Add(task)
		time.Sleep(longest / 2)
		synctest.Wait()

		failed = made()
		require.Greater(t, len(failed), 1, "attempts within half of the longest pause after a success")
		require.Equal(t, pauses[0], failed[1]-failed[0], "the first pause after a success")

		cancel()
		<-ended
	})
}
