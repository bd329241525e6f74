package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// TestAnswerProbesAnOldRecord is about conditions that no event announces.
func TestAnswerProbesAnOldRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)

		answer := func() []health.Entry {
			began := time.Now()
			record, ok := monitor.Answer("a")
			require.True(t, ok, "want: the subject has a record")
			require.Equal(t, began, time.Now(), "an answer has waited")
			synctest.Wait()

			return record.Entries
		}

		w.setReasons("a", health.InodesExhausted)
		time.Sleep(29 * time.Second)
		require.Empty(t, answer(), "want: the answer is the record before the change")
		require.Empty(t, answer(), "want: the answer is the record before the change")
		require.Equal(t, 1, w.count("a"), "a record of less than 30 s is probed")

		// Between two of the seconds in which unhealthy subjects are probed.
		time.Sleep(1500 * time.Millisecond)
		require.Empty(t, answer(), "it answers from the record")
		require.Equal(t, health.InodesExhausted, answer()[0].Reason)
		require.Equal(t, 2, w.count("a"), "want: the second answer has the subject probed again")
	})
}

// TestAnswersShareAProbe while it hangs.
func TestAnswersShareAProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(31 * time.Second)

		release := w.hang("a")

		for range 10 {
			_, ok := monitor.Answer("a")
			require.True(t, ok, "want: the subject has a record")
			synctest.Wait()
		}

		release()
		synctest.Wait()
		require.Equal(t, 2, w.count("a"), "the relist's probe and one of the answers")

		_, ok := monitor.Answer("b")
		require.False(t, ok, "a subject without a record")
		synctest.Wait()
		require.Zero(t, w.count("b"), "want: the second subject waits for the first")
	})
}
