package health_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// TestRepairIsFoundWithoutAnEvent, for each reason, with no source at all.
func TestRepairIsFoundWithoutAnEvent(t *testing.T) {
	t.Parallel()

	for _, reason := range health.Reasons() {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a", "b")
				w.setReasons("a", reason)

				monitor := health.New(w.config())
				run(t, monitor)
				time.Sleep(10 * time.Second)
				require.Equal(t, []health.Reason{reason}, reasons(t, monitor, "a"))

				w.setReasons("a")
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Empty(t, reasons(t, monitor, "a"), "2 s after the repair it is unhealthy still")
				require.Equal(t, 1, w.count("b"), "a healthy subject waits for the relist")
			})
		})
	}
}

// TestManyUnhealthySubjectsAreProbedInTurn, within the bound, and none is omitted.
func TestManyUnhealthySubjectsAreProbedInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const count, batch, seconds = 1000, 256, 8

		ids := make([]string, count)
		for i := range ids {
			ids[i] = fmt.Sprintf("%04d", i)
		}

		w := newFakes(ids...)
		for _, id := range ids {
			w.setReasons(id, health.OutOfCapacity)
		}

		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(seconds*time.Second + time.Second/2)

		total := 0

		for _, id := range ids {
			probes := w.count(id) - 1 // the relist's
			total += probes

			require.Contains(t, []int{seconds * batch / count, seconds*batch/count + 1}, probes, "probes of subject %s", id)
		}

		require.Equal(t, seconds*batch, total, "probes in %d s", seconds)
	})
}

func TestSubjectIsNotProbedBeforeItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		w.setReasons("a", health.GuestStatsUnavailable)
		w.change(func() { w.again["a"], w.patient["a"] = 20*time.Second, true })

		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(19 * time.Second)
		require.Equal(t, 1, w.count("a"), "want: the subject is not probed before its time")
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, w.count("a"), "want: the subject is probed at its time")
	})
}

// TestHangingProbeIsNotRequestedAgain, so that it is not repeated without an end once it returns.
func TestHangingProbeIsNotRequestedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)

		release := w.hang("a")
		monitor.Suspect("a")
		time.Sleep(2*time.Second + time.Second/2)

		during := w.count("a")

		time.Sleep(10 * time.Second)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, "a"))
		require.Equal(t, during, w.count("a"), "no second probe beside one that hangs")
		release()
		time.Sleep(2 * time.Second)
		require.Empty(t, reasons(t, monitor, "a"), "want: the ended probe clears the condition")
	})
}
