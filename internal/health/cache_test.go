package health_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

func observed(reasons ...health.Reason) health.Observation {
	var found health.Observation
	for _, reason := range reasons {
		found.Entries = append(found.Entries, health.NewEntry(reason, "it is "+string(reason)))
	}

	return found
}

func TestSetKeepsNewerObservations(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	at := time.Now()

	require.True(t, monitor.Set("a", observed(health.DiskFailure), at), "want: Set takes the observation")

	first, ok := monitor.Get("a")
	require.True(t, ok, "want: the record is known")

	require.False(t, monitor.Set("a", observed(), at.Add(-time.Nanosecond)), "older")
	require.False(t, monitor.Set("a", observed(), at), "as old")
	require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))

	require.True(t, monitor.Set("a", observed(), at.Add(time.Nanosecond)), "newer")
	require.Empty(t, reasons(t, monitor, "a"), "want: the newer observation replaces the conditions")

	require.Equal(t, observed(health.DiskFailure).Entries, first.Entries, "a record is never changed")
	require.Equal(t, at, first.ObservedAt)
}

func TestEntriesAreUniqueAndTheWorstFirst(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	require.True(t, monitor.Set("a", observed(health.IOErrors, health.FilesystemCorrupted, health.IOErrors, health.DiskFailure), time.Now()),
		"want: Set takes the observation")
	require.Equal(t, []health.Reason{health.FilesystemCorrupted, health.DiskFailure, health.IOErrors}, reasons(t, monitor, "a"))
}

func TestSinceOutlivesRenewals(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	began := time.Now()
	since := func(reason health.Reason) time.Duration {
		record, ok := monitor.Get("a")
		require.True(t, ok, "want: the record is known")
		require.Len(t, record.Since, len(record.Entries), "of the reasons among the entries, and no other")
		require.Contains(t, record.Since, reason)

		return record.Since[reason].Sub(began)
	}

	for minute, reasons := range [][]health.Reason{
		{health.IOErrors}, {health.IOErrors}, {health.ReadOnlyRemount, health.IOErrors}, {health.ReadOnlyRemount}, {health.IOErrors},
	} {
		require.True(t, monitor.Set("a", observed(reasons...), began.Add(time.Duration(minute)*time.Minute)),
			"want: Set takes the observation")

		switch minute {
		case 0, 1, 2:
			require.Equal(t, time.Duration(0), since(health.IOErrors), "want: the condition is as old as its first observation")
		case 3:
			require.Equal(t, 2*time.Minute, since(health.ReadOnlyRemount), "want: the condition is as old as its first observation")
		case 4:
			require.Equal(t, 4*time.Minute, since(health.IOErrors), "a reason that comes back starts again")
		}
	}
}

func TestUsageStaysUntilThereIsANewerOne(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	at := time.Now()
	usage := &health.Usage{Bytes: health.Amount{Total: 3, Used: 2, Available: 1}}

	require.True(t, monitor.Set("a", health.Observation{Usage: usage}, at), "want: Set takes the observation")
	require.True(t, monitor.Set("a", observed(health.DiskFailure), at.Add(1)), "want: Set takes the observation")

	record, _ := monitor.Get("a")
	require.Equal(t, usage, record.Usage)

	other := &health.Usage{Bytes: health.Amount{Total: 6}}
	require.True(t, monitor.Set("a", health.Observation{Usage: other}, at.Add(2)), "want: Set takes the observation")

	record, _ = monitor.Get("a")
	require.Equal(t, other, record.Usage)
}

func TestAbnormalIsInOrder(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	at := time.Now()

	for _, id := range []string{"d", "b", "e", "a", "c"} {
		require.True(t, monitor.Set(id, observed(health.IOErrors), at), "want: Set takes the observation")
	}

	require.True(t, monitor.Set("c", observed(), at.Add(1)), "well again")
	require.True(t, monitor.Set("f", observed(), at), "never ill")
	monitor.Forget("e")

	list := func(after string) []string {
		ids := []string{}
		for _, record := range monitor.Abnormal(after) {
			ids = append(ids, record.ID)
		}

		return ids
	}

	require.Equal(t, []string{"a", "b", "d"}, list(""))
	require.Equal(t, []string{"b", "d"}, list("a"))
	require.Equal(t, []string{"d"}, list("c"), "after one that is not among them")
	require.Empty(t, list("d"), "want: no subject follows the last")
	require.Len(t, monitor.All(), 5, "want: all subjects are listed")
}

func TestConditionIsThatOfTheLastProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		release := w.hang("a")

		monitor := health.New(w.config())
		require.True(t, monitor.Set("a", observed(health.IOErrors), time.Now()), "want: Set takes the observation")

		for _, step := range []struct {
			act      func()
			abnormal bool
			text     string
		}{
			{func() {}, true, "IOErrors: it is IOErrors"},
			{
				func() { require.NoError(t, monitor.Relist(t.Context())) }, true,
				"IOErrors: it is IOErrors; ProbeTimedOut: the last probe timed out",
			},
			{func() { release(); synctest.Wait() }, false, "healthy"},
		} {
			step.act()

			status := &csi.ListVolumesResponse_VolumeStatus{}
			record, _ := monitor.Get("a")
			health.PutCondition(status, record)

			abnormal, text := condition(t, status)
			require.Equal(t, step.abnormal, abnormal, "want: the condition is on the wire")
			require.Equal(t, step.text, text)
		}
	})
}

func TestGetAllocatesNothing(t *testing.T) {
	monitor := health.New(newFakes().config())
	require.True(t, monitor.Set("a", observed(), time.Now()), "want: Set takes the observation")
	require.Zero(t, testing.AllocsPerRun(100, func() { monitor.Get("a") }), "want: Get allocates nothing")
}

// awaitRecord calls Await in a goroutine and returns a function that reads its result so far.
func awaitRecord(ctx context.Context, monitor *health.Monitor, id string, newerThan time.Time) func() (*health.Record, error, bool) {
	var (
		record *health.Record
		err    error
	)

	done := make(chan struct{})

	go func() {
		defer close(done)

		record, err = monitor.Await(ctx, id, newerThan)
	}()

	return func() (*health.Record, error, bool) {
		synctest.Wait()

		select {
		case <-done:
			return record, err, true
		default:
			return nil, nil, false
		}
	}
}

// waiting is a monitor with a caller of Await.
type waiting struct {
	t       *testing.T
	w       *fakes
	monitor *health.Monitor
	asked   time.Time
}

func TestAwaitWaitsForANewerRecord(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		act  func(s waiting)
		done bool
		err  error
		sick bool
	}{
		"nothing happens": {act: func(s waiting) {}},
		"an older probe": {act: func(s waiting) {
			require.True(s.t, s.monitor.Set("a", observed(health.DiskFailure), s.asked.Add(-1)), "want: Set takes the observation")
		}},
		"a newer probe of another": {act: func(s waiting) {
			require.True(s.t, s.monitor.Set("b", observed(health.DiskFailure), s.asked.Add(1)), "want: Set takes the observation")
		}},
		"a newer probe": {done: true, sick: true, act: func(s waiting) {
			require.True(s.t, s.monitor.Set("a", observed(health.DiskFailure), s.asked.Add(1)), "want: Set takes the observation")
		}},
		"a relist that finds it": {done: true, sick: true, act: func(s waiting) {
			s.w.setReasons("a", health.DiskFailure)
			require.NoError(s.t, s.monitor.Relist(s.t.Context()))
		}},
		"a relist that finds it hanging": {done: true, sick: true, act: func(s waiting) {
			s.t.Cleanup(s.w.hang("a"))
			require.NoError(s.t, s.monitor.Relist(s.t.Context()))
		}},
		"a relist whose probe decides nothing": {done: true, act: func(s waiting) {
			s.w.change(func() { s.w.errs["a"] = health.ErrKeep })
			require.NoError(s.t, s.monitor.Relist(s.t.Context()))
		}},
		"a relist without it": {done: true, err: health.ErrGone, act: func(s waiting) {
			s.w.change(func() { s.w.ids = nil })
			require.NoError(s.t, s.monitor.Relist(s.t.Context()))
		}},
		"it is found gone": {done: true, err: health.ErrGone, act: func(s waiting) {
			s.w.change(func() { s.w.errs["a"] = health.ErrGone })
			require.NoError(s.t, s.monitor.Relist(s.t.Context()))
		}},
		"it is forgotten": {done: true, err: health.ErrGone, act: func(s waiting) {
			s.monitor.Forget("a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				monitor := health.New(w.config())
				require.NoError(t, monitor.Relist(t.Context()))
				time.Sleep(time.Second)

				asked := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				answer := awaitRecord(ctx, monitor, "a", asked)

				time.Sleep(time.Second)

				_, _, done := answer()
				require.False(t, done, "what is known is older")

				test.act(waiting{t, w, monitor, asked})

				record, err, done := answer()
				require.Equal(t, test.done, done, "want: Await ends with a newer observation or an error")
				require.ErrorIs(t, err, test.err)

				if test.done && test.err == nil {
					require.Equal(t, test.sick, !record.Healthy(), "want: the newer observation is returned")
				}

				cancel()

				_, err, done = answer()
				require.True(t, done, "want: an answer")

				if !test.done {
					require.ErrorIs(t, err, context.Canceled)
				}
			})
		})
	}
}

func TestAwaitAtTheStartWaitsForTheFirstRelist(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		monitor := health.New(newFakes("a").config())
		known, unknown := awaitRecord(t.Context(), monitor, "a", time.Time{}), awaitRecord(t.Context(), monitor, "b", time.Time{})

		_, _, done := known()
		require.False(t, done, "want: no answer yet")

		require.NoError(t, monitor.Relist(t.Context()))

		record, err, done := known()
		require.True(t, done, "want: an answer")
		require.NoError(t, err)
		require.True(t, record.Healthy(), "want: the subject is healthy")

		_, err, done = unknown()
		require.True(t, done, "want: an answer")
		require.ErrorIs(t, err, health.ErrGone)
	})
}

func TestForgetDropsFutureObservations(t *testing.T) {
	t.Parallel()

	monitor := health.New(newFakes().config())
	ahead := time.Now().Add(time.Hour)

	require.True(t, monitor.Set("a", observed(health.DiskFailure), ahead), "want: Set takes the observation")
	monitor.Forget("a")

	_, ok := monitor.Get("a")
	require.False(t, ok, "a is known after Forget")
	require.False(t, monitor.Set("a", observed(health.DiskFailure), ahead), "Set keeps an observation from before Forget")
}

func TestForgetDropsEarlierObservations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes()
		monitor := health.New(w.config())
		before := time.Now()

		require.True(t, monitor.Set("a", observed(health.DiskFailure), before), "want: Set takes the observation")
		time.Sleep(time.Second)
		monitor.Forget("a")

		_, ok := monitor.Get("a")
		require.False(t, ok, "want: no record")
		require.Empty(t, monitor.Abnormal(""), "want: the forgotten subject is not unhealthy")

		require.False(t, monitor.Set("a", observed(), before.Add(time.Millisecond)), "want: Set ignores the observation")
		time.Sleep(time.Second)
		require.NoError(t, monitor.Relist(t.Context()))
		require.False(t, monitor.Set("a", observed(), before.Add(time.Millisecond)), "after a relist neither")

		time.Sleep(time.Second)
		require.True(t, monitor.Set("a", observed(), time.Now()), "a new one of that name")
	})
}
