package health_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/leftover"
)

// TestTheFirstRelistIsAwaited until it is complete, or the caller or the monitor ends.
func TestTheFirstRelistIsAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		release := w.hang("a")
		monitor := health.New(w.config())
		ctx, cancel := context.WithCancel(t.Context())
		awaited, ended := make(chan error, 1), make(chan error, 1)

		go func() { awaited <- monitor.AwaitRelist(t.Context()) }()
		go func() { ended <- monitor.AwaitRelist(ctx) }()
		go monitor.Relist(t.Context())

		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Empty(t, awaited, "want: the relist is not complete while its probe runs")
		release()
		require.NoError(t, <-awaited)
		require.NoError(t, monitor.AwaitRelist(t.Context()), "want: a relist was complete before")
	})
}

// TestAwaitReturnsAfterTheEnd, also if the first probe hangs.
func TestAwaitReturnsAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		defer w.hang("a")()

		monitor := health.New(w.config())
		ctx, cancel := context.WithCancel(t.Context())
		awaited, probed := make(chan error, 1), make(chan error, 1)

		go monitor.Run(ctx)
		go func() { awaited <- monitor.AwaitRelist(t.Context()) }()
		go func() {
			_, err := monitor.ProbeNow(t.Context(), "a")
			probed <- err
		}()

		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-awaited, errdefs.ErrUnavailable)
		require.ErrorIs(t, <-probed, errdefs.ErrUnavailable)
	})
}

func TestSuspectAllProbesEachSubject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a", "b")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(10 * time.Second)
		monitor.SuspectAll()
		synctest.Wait()
		require.Equal(t, 2, w.count("a"), "want: each subject is probed at once")
		require.Equal(t, 2, w.count("b"), "want: each subject is probed at once")
	})
}

// TestAnOldAnswerBeforeRunProbesNothing because only Run bounds the probes by its end.
func TestAnOldAnswerBeforeRunProbesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		relist(t, monitor)
		time.Sleep(time.Hour)

		_, ok := monitor.Answer("a")
		require.True(t, ok, "want: the subject has a record")
		synctest.Wait()
		require.Equal(t, 1, w.count("a"), "want: the relist's probe only")
	})
}

// TestAgeIsOfTheNewestProbe, at its limit.
func TestAgeIsOfTheNewestProbe(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		set  time.Duration
		age  time.Duration
		want int
	}{
		"default, before": {0, health.DefaultAnswerAge - 1, 1},
		"default, at it":  {0, health.DefaultAnswerAge, 2},
		"own, before":     {10 * time.Second, 10*time.Second - 1, 1},
		"own, at it":      {10 * time.Second, 10 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				config := w.config()
				config.AnswerAge = test.set
				monitor := health.New(config)
				run(t, monitor)

				record, _ := monitor.Get("a")
				time.Sleep(time.Until(record.ObservedAt.Add(test.age)))
				monitor.Answer("a")
				synctest.Wait()
				require.Equal(t, test.want, w.count("a"), "want: a record of that age has its subject probed")
			})
		})
	}
}

func TestInjectedConditionsAreReported(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		err  error
		want []health.Reason
	}{
		"of a healthy subject":   {nil, []health.Reason{health.IOErrors}},
		"beside a probe's error": {errors.New("broken"), []health.Reason{health.ProbeTimedOut}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a", "b")
				w.change(func() { w.errs["a"] = test.err })

				config := w.config()
				config.Inject = func(view, id string) []health.Entry {
					if view == "node" && id == "a" {
						return []health.Entry{health.NewEntry(health.IOErrors, "injected")}
					}

					return nil
				}
				monitor := health.New(config)
				relist(t, monitor)
				require.Equal(t, test.want, reasons(t, monitor, "a"))
				require.Empty(t, reasons(t, monitor, "b"), "want: nothing is injected into another subject")
			})
		})
	}
}

func TestChangesOfConditionsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer

		config := newFakes().config()
		config.Log = slog.New(slog.NewTextHandler(&logged, nil))
		monitor := health.New(config)
		line := func(change func()) string {
			logged.Reset()
			time.Sleep(time.Second)
			change()

			return logged.String()
		}

		appeared := line(func() { monitor.Set("a", observed(health.IOErrors), time.Now()) })
		require.Contains(t, appeared, "level=WARN")
		require.Contains(t, appeared, "a condition has appeared")
		require.Contains(t, appeared, "view=node subject=a")
		require.Empty(t, line(func() { monitor.Set("a", observed(health.IOErrors), time.Now()) }), "want: the same condition is logged once")

		cleared := line(func() { monitor.Forget("a") })
		require.Contains(t, cleared, "level=INFO")
		require.Contains(t, cleared, "a condition has cleared")
		require.Empty(t, line(func() { monitor.Forget("a") }), "want: an unknown subject has no change")
	})
}

// TestEventsWithoutATimeOrSubject are reported by a source without a clock, to a monitor of no events.
func TestEventsWithoutATimeOrSubject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry, w, errs := prometheus.NewRegistry(), newFakes("a"), newSource("errors")
		config := w.config()
		config.Sources, config.Metrics = []health.Source{errs}, health.NewMetrics(registry)
		monitor := health.New(config)
		run(t, monitor)
		time.Sleep(10 * time.Second)
		errs.notify(health.Event{Kind: health.IOError, Path: "a"})
		synctest.Wait()
		require.Equal(t, metric{value: 1}, gather(t, registry, "touchstone_health_event_latency_seconds")["errors/node"], "want: the time of its arrival counts")
		require.InDelta(t, 1, values(t, registry, "touchstone_health_events_total")["io-error/errors/node"], 0, "want: the event is counted")

		other := newSource("errors")
		config = w.config()
		config.Sources, config.Concern = []health.Source{other}, nil
		run(t, health.New(config))

		before := w.count("a")
		other.report(health.IOError, "a")
		require.Equal(t, before, w.count("a"), "want: events affect no subject")
	})
}

func TestNamesOfEventsAndStatuses(t *testing.T) {
	t.Parallel()

	names := map[string]bool{}

	for kind := health.Lost; kind <= health.DeviceChanged; kind++ {
		names[kind.String()] = true
	}

	require.Len(t, names, 8, "want: each kind has a name of its own")
	require.NotContains(t, names, "unknown")

	for _, kind := range []health.Kind{-1, 0, health.DeviceChanged + 1} {
		require.Equal(t, "unknown", kind.String())
	}

	for status := health.Degraded; status <= health.StorageUnreachable; status++ {
		text, err := status.MarshalText()
		require.NoError(t, err)

		read := health.Status(99)
		require.NoError(t, read.UnmarshalText(text))
		require.Equal(t, status, read)
	}

	read := health.Degraded
	require.NoError(t, read.UnmarshalText([]byte("FINE")))
	require.Zero(t, read, "want: an unknown status is none")
	require.Equal(t, "UNKNOWN", read.String())

	require.Equal(t, health.Inaccessible, health.VolumeNotFound.Status())
	require.Equal(t, health.Degraded, health.Reason("Another").Status())
	require.False(t, health.Reason("Another").Evented(), "want: an unknown reason has no event")
	require.True(t, health.IOErrors.Evented(), "want: I/O errors have an event")
	require.False(t, health.OutOfCapacity.Evented(), "want: a full filesystem has no event")
}

// TestEndDropsQueuedProbes has a probe queued behind one that runs when the monitor ends.
func TestEndDropsQueuedProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "01a216d9-f4b2-7e88-8e9c-42d991616f34"

		w := newFakes(id)
		ctx, cancel := context.WithCancel(t.Context())
		monitor := health.New(w.config())
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			monitor.Run(ctx)
		}()

		time.Sleep(time.Second)

		release := w.hang(id)
		monitor.Suspect(id)
		synctest.Wait()
		time.Sleep(time.Second)
		monitor.Suspect(id)
		monitor.Forget(id)
		cancel()
		synctest.Wait()
		release()
		<-ended

		require.Equal(t, 2, w.count(id), "want: no probe starts after the end")
		require.Empty(t, leftover.InMemory(monitor, nil, nil), "want: nothing of what was queued is left")
	})
}
