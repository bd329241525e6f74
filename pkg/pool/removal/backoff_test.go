package removal_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/pool/removal"
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
			attempts []time.Duration
			works    bool
		)

		task := removal.Task{Pool: "p", Object: "volume v", Remove: func(context.Context) error {
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

		pauses := make([]time.Duration, 0, len(attempts))
		for i := 1; i < len(attempts); i++ {
			pauses = append(pauses, attempts[i]-attempts[i-1])
		}

		require.Greater(t, len(pauses), 10, "it is retried all day")

		longest := pauses[len(pauses)-1]
		require.GreaterOrEqual(t, longest, 10*time.Second, "the longest pause")

		for i, pause := range pauses[1:] {
			require.Equal(t, min(2*pauses[i], longest), pause, "the pause after one of %s", pauses[i])
		}

		require.Positive(t, pauses[0])
		require.Less(t, pauses[0], longest)

		// Another task of the same object does not shorten the pause.
		count := len(attempts)
		q.Add(task)
		time.Sleep(pauses[0])
		synctest.Wait()
		require.LessOrEqual(t, len(attempts), count+1, "attempts right after it was scheduled again")

		works = true

		time.Sleep(longest)
		synctest.Wait()
		require.Zero(t, q.Len(), "it has succeeded")

		// After a success the pauses are short again.
		works, attempts = false, nil

		q.Add(task)
		time.Sleep(longest / 2)
		synctest.Wait()
		require.Greater(t, len(attempts), 1, "the first pause after a success")
		require.Equal(t, pauses[0], attempts[1]-attempts[0])

		cancel()
		<-ended
	})
}
