package health_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// relist advances the clock, so that its probes are newer, and relists.
func relist(t *testing.T, monitor *health.Monitor) {
	t.Helper()
	time.Sleep(time.Millisecond)
	require.NoError(t, monitor.Relist(t.Context()))
}

func TestEventDuringAProbeTriggersAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		monitor.Suspect("a")
		synctest.Wait()
		time.Sleep(50 * time.Millisecond)

		// The running probe started before this.
		w.setReasons("a", health.DiskFailure)
		monitor.Suspect("a")
		monitor.Suspect("a")
		synctest.Wait()
		require.Equal(t, 2, w.count("a"), "the first relist's, and the running one")

		release()
		synctest.Wait()
		require.Equal(t, 3, w.count("a"), "want: the event during the probe triggers another")
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))
		require.Equal(t, 1, w.most("a"), "never two at a time")
	})
}

func TestRelistIgnoresAnOlderProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		release := w.hang("a")

		go monitor.ProbeNow(t.Context(), "a")

		synctest.Wait()
		w.setReasons("a", health.DiskFailure)
		time.AfterFunc(50*time.Millisecond, release)
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))
		require.Equal(t, 2, w.count("a"), "want: the relist has the subject probed again")
		require.Equal(t, 1, w.most("a"), "want: one probe of the subject runs at once")
	})
}

// TestRelistDoesNotWaitForAnOlderHangingProbe starts the relist while the
// older probe has not timed out yet.
func TestRelistDoesNotWaitForAnOlderHangingProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		defer release() // also when the test fails, which would otherwise end as a deadlock

		began := time.Now()

		monitor.Suspect("a")
		time.Sleep(time.Second)
		relist(t, monitor)
		require.WithinDuration(t, began.Add(health.DefaultProbeTimeout), time.Now(), 10*time.Millisecond)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, "a"))
		release()
	})
}

func TestSetAfterGoneIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		w.change(func() { w.errs["a"] = health.ErrGone })

		monitor := health.New(w.config())
		time.AfterFunc(time.Second, w.hang("a"))
		time.AfterFunc(time.Second/2, func() { monitor.Set("a", observed(health.IOErrors), time.Now()) })
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
	})
}

func TestRelistKeepsNewerRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		time.AfterFunc(time.Second, w.hang("a"))
		time.AfterFunc(time.Second/2, func() { monitor.Set("new", observed(health.IOErrors), time.Now()) })
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "new"), "it was added after the listing")
		relist(t, monitor)

		_, ok := monitor.Get("new")
		require.False(t, ok, "want: no record")
	})
}

func TestConcurrentRelistsShareProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a", "b")
		release := w.hang("a")
		monitor := health.New(w.config())
		done := make(chan error)

		go func() { done <- monitor.Relist(t.Context()) }()

		synctest.Wait()

		go func() { done <- monitor.Relist(t.Context()) }()

		synctest.Wait()
		release()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, 1, w.most("a"), "want: one probe of the subject runs at once")
	})
}

func TestConcurrentProbesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes(manyIDs()[:500]...)
		config := w.config()
		config.Probe = func(ctx context.Context, id string) (health.Observation, error) {
			gate := w.hang(id)
			time.AfterFunc(50*time.Millisecond, gate)

			return w.probe(ctx, id)
		}

		monitor := health.New(config)
		relist(t, monitor)
		require.Equal(t, 32, w.most(""), "want: 32 probes run at once")
		require.Len(t, monitor.All(), 500, "want: each subject has a record")
	})
}

func TestProbeRequestsAnother(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		err   error
		again time.Duration
		want  time.Duration
	}{
		"observation":         {again: 7500 * time.Millisecond, want: 7500 * time.Millisecond},
		"returns ErrKeep":     {err: health.ErrKeep, want: 100 * time.Millisecond},
		"ErrKeep with a time": {err: health.ErrKeep, again: 3500 * time.Millisecond, want: 3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				monitor := health.New(w.config())
				w.change(func() { w.again["a"], w.errs["a"] = test.again, test.err })
				run(t, monitor)
				w.change(func() { w.again["a"], w.errs["a"] = 0, nil })
				w.setReasons("a", health.IOErrors)

				time.Sleep(test.want - time.Millisecond)
				synctest.Wait()
				require.Equal(t, 1, w.count("a"), "want: the next probe is not early")
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, 2, w.count("a"), "want: the next probe is in time")
				require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))

				w.setReasons("a")
				time.Sleep(2 * time.Second)
				synctest.Wait()

				now := w.count("a")

				time.Sleep(28 * time.Second)
				require.Equal(t, now, w.count("a"), "requested once")
			})
		})
	}
}

func TestNewestObservationSchedulesTheNextProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		time.Sleep(time.Second)
		require.False(t, monitor.Set("a", health.Observation{Again: time.Second}, time.Now().Add(-time.Hour)),
			"want: Set ignores the observation")
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, w.count("a"), "the older observation requests nothing")
		time.Sleep(3 * time.Second)
		require.Equal(t, 2, w.count("a"), "want: the newest observation schedules the next probe")

		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		time.Sleep(time.Second)
		require.True(t, monitor.Set("a", health.Observation{}, time.Now()), "want: Set takes the observation")
		time.Sleep(10 * time.Second)
		require.Equal(t, 2, w.count("a"), "the newer observation requests none")

		// A newer probe does the same.
		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		relist(t, monitor)
		time.Sleep(10 * time.Second)
		require.Equal(t, 3, w.count("a"), "want: the relist does not replace the schedule")
	})
}

func TestProbeNowProbesImmediately(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		prepare func(w *fakes) (release func())
		err     error
		want    []health.Reason
	}{
		"healthy": {func(*fakes) func() { return func() {} }, nil, []health.Reason{}},
		"unhealthy": {
			func(w *fakes) func() { w.setReasons("a", health.IOErrors); return func() {} }, nil, []health.Reason{health.IOErrors},
		},
		"hanging": {func(w *fakes) func() { return w.hang("a") }, nil, []health.Reason{health.ProbeTimedOut}},
		"gone": {
			func(w *fakes) func() { w.change(func() { w.errs["a"] = health.ErrGone }); return func() {} }, health.ErrGone, nil,
		},
		"being changed": {
			func(w *fakes) func() { w.change(func() { w.errs["a"] = health.ErrKeep }); return func() {} }, nil, []health.Reason{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				monitor := health.New(w.config())
				relist(t, monitor)
				time.Sleep(time.Second)

				release := test.prepare(w)
				record, err := monitor.ProbeNow(t.Context(), "a")
				require.ErrorIs(t, err, test.err)

				if test.err == nil {
					require.Equal(t, test.want, reasons(t, monitor, "a"))
					require.Equal(t, record.Entries, monitor.All()[0].Entries)
				}

				release()
				time.Sleep(10 * time.Second)
				require.Equal(t, 2, w.count("a"), "Look triggers one probe")
			})
		})
	}
}

// TestProbeNowPrecedesRelists calls ProbeNow while a relist of many subjects uses the
// concurrency limit.
func TestProbeNowPrecedesRelists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes(manyIDs()[:1000]...)
		config := w.config()
		config.Probe = func(ctx context.Context, id string) (health.Observation, error) {
			time.Sleep(10 * time.Millisecond)

			return w.probe(ctx, id)
		}

		monitor := health.New(config)
		relisted := make(chan error)

		go func() { relisted <- monitor.Relist(t.Context()) }()

		for range 10 {
			synctest.Wait()

			began := time.Now()
			_, err := monitor.ProbeNow(t.Context(), "a")
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), 20*time.Millisecond, "the clock is synctest's own")
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := monitor.ProbeNow(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, <-relisted)
	})
}

// TestManyEventsTriggerBoundedProbes sends ten thousand events a second for ten seconds.
func TestManyEventsTriggerBoundedProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a", "b")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		for range 100_000 {
			monitor.Suspect("a")
			time.Sleep(100 * time.Microsecond)
		}

		// The last event is probed soon.
		w.setReasons("a", health.IOErrors)
		monitor.Suspect("a")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))

		time.Sleep(5 * time.Second)
		require.InDelta(t, 100, w.count("a"), 15, "about ten a second")
		require.Equal(t, 1, w.count("b"), "want: the other subject is probed once")

		// Afterwards events are probed immediately again.
		w.setReasons("a")
		monitor.Suspect("a")
		synctest.Wait()
		require.Empty(t, reasons(t, monitor, "a"), "want: the probe clears the condition")
	})
}

// TestOperationsThatFollowEachOtherAreProbedOnce, after the first; one that ends the use of the subject cancels the
// probe.
func TestOperationsThatFollowEachOtherAreProbedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		monitor.ProbeSoon("a")
		run(t, monitor)
		time.Sleep(time.Second)
		require.Equal(t, 1, w.count("a"), "the first relist's: nothing is probed before")

		for range 3 {
			monitor.ProbeSoon("a")
			time.Sleep(6 * time.Millisecond)
		}

		require.Equal(t, 1, w.count("a"), "want: the probe follows 20 ms after the first operation")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 2, w.count("a"), "want: one probe follows")

		monitor.ProbeSoon("a")
		monitor.Forget("a")
		time.Sleep(10 * time.Second)
		require.Equal(t, 2, w.count("a"), "want: no other probe follows")

		monitor.Suspect("a")
		monitor.ProbeSoon("a")
		time.Sleep(10 * time.Second)
		require.Equal(t, 6, w.count("a"), "want: the four probes after an event serve as well")
	})
}

func TestRelistCoversEarlierEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(10 * time.Second)

		for range 3 {
			monitor.Suspect("a")
			time.Sleep(time.Millisecond)
		}

		require.Equal(t, 2, w.count("a"), "the next one is due after 5 ms")
		relist(t, monitor)
		require.Equal(t, 3, w.count("a"), "want: the relist replaces the probe that is due")
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, 3, w.count("a"), "the relist's probe covers the events")
	})
}

// TestEventGapShrinksAgain uses a subject whose state is kept by a requested probe.
func TestEventGapShrinksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		w.change(func() { w.again["a"] = 30 * time.Second })

		monitor := health.New(w.config())
		run(t, monitor)

		for range 1000 {
			monitor.Suspect("a")
			time.Sleep(time.Millisecond)
		}

		time.Sleep(10 * time.Second)

		probes := w.count("a")

		monitor.Suspect("a")
		time.Sleep(6 * time.Millisecond)
		monitor.Suspect("a")
		synctest.Wait()
		require.Equal(t, probes+2, w.count("a"), "after the shortest gap again")
	})
}

func TestRelistEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a", "b")
		monitor := health.New(w.config())
		require.NoError(t, monitor.Relist(t.Context()))

		release := w.hang("a")
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()

		time.AfterFunc(time.Second, cancel)
		w.change(func() { w.ids = []string{"a"} })
		require.ErrorIs(t, monitor.Relist(ctx), context.Canceled)
		require.Equal(t, time.Second, time.Since(began), "want: Relist ends with its context")

		_, ok := monitor.Get("b")
		require.True(t, ok, "an incomplete relist drops no record")
		release()
	})
}
