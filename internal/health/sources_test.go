package health_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

// source is one whose fate the test decides.
type source struct {
	name        string
	unsupported error

	mu    sync.Mutex
	asked int
	// refused has it fail before it connects.
	refused error
	// connectAfter is how long it takes to connect.
	connectAfter time.Duration
	// runs are the times at which it was run.
	runs   []time.Time
	notify func(health.Event)
	fail   chan error
}

func newSource(name string) *source { return &source{name: name, fail: make(chan error)} }

func (s *source) Name() string { return s.name }

func (s *source) Supported() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.asked++

	return s.unsupported
}

func (s *source) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	s.mu.Lock()
	s.runs = append(s.runs, time.Now())
	refused := s.refused
	s.mu.Unlock()

	if refused != nil {
		return refused
	}

	time.Sleep(s.connectAfter)
	s.mu.Lock()
	s.notify = notify
	s.mu.Unlock()
	connected()

	select {
	case err := <-s.fail:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (s *source) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change()
}

// report reports an event.
func (s *source) report(kind health.Kind, path string) {
	s.mu.Lock()
	notify := s.notify
	s.mu.Unlock()

	notify(health.Event{Kind: kind, At: time.Now(), Path: path})
	synctest.Wait()
}

// ranAt returns how long after began it was run.
func (s *source) ranAt(began time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	at := []time.Duration{}
	for _, each := range s.runs {
		at = append(at, each.Sub(began))
	}

	return at
}

func TestEventProbesItsSubjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, errs := newFakes("a", "b"), newSource("errors")
		config := w.config()
		config.Sources = []health.Source{errs}
		monitor := health.New(config)
		run(t, monitor)
		time.Sleep(time.Second)

		a, b := w.count("a"), w.count("b")

		w.setReasons("a", health.IOErrors)
		errs.report(health.IOError, "a")
		errs.report(health.MountsChanged, "")
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))

		// A filesystem shuts down after its I/O error, and reports no more errors.
		time.Sleep(20 * time.Millisecond)
		w.setReasons("a", health.IOErrors, health.DiskFailure)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, []health.Reason{health.DiskFailure, health.IOErrors}, reasons(t, monitor, "a"))

		require.GreaterOrEqual(t, w.count("a"), a+3, "at once, after 20 ms and after 100 ms")

		w.setReasons("a")
		time.Sleep(2 * time.Second)
		require.Empty(t, reasons(t, monitor, "a"), "after 1 s")

		// What is healthy is not probed any more.
		now := w.count("a")

		time.Sleep(20 * time.Second)
		require.Equal(t, now, w.count("a"), "want: no further event, no further probe")
		require.Equal(t, b, w.count("b"), "want: the other subject is not probed")
	})
}

func TestAnUnsupportedSourceIsNeverConnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, here, missing := newFakes("a"), newSource("here"), newSource("missing")
		missing.unsupported = errors.New("no tracefs in this kernel")

		var logged bytes.Buffer

		config := w.config()
		config.Sources = []health.Source{here, missing}
		config.Log = slog.New(slog.NewTextHandler(&logged, nil))
		monitor := health.New(config)

		for _, status := range monitor.Sources() {
			require.False(t, status.Connected, "want: the source is not connected")
			require.NotEmpty(t, status.Problem, "want: the status says why the source is not connected")
		}

		run(t, monitor)
		time.Sleep(time.Hour + time.Second)

		require.Equal(t, []health.SourceStatus{
			{Name: "here", Connected: true}, {Name: "missing", Problem: "no tracefs in this kernel"},
		}, monitor.Sources())
		require.Equal(t, 1, missing.asked, "want: support is asked for once")
		require.Empty(t, missing.runs, "want: the unsupported source does not run")
		require.Equal(t, 1, bytes.Count(logged.Bytes(), []byte("event source is not supported")), "want: the unsupported source is logged once")
		require.Contains(t, logged.String(), "level=INFO")
		require.InDelta(t, 61, w.count("a"), 2, "it relists as often as without sources")
	})
}

// TestRefusedSourceIsReconnected: it refuses for an hour.
func TestRefusedSourceIsReconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errs := newSource("errors")
		errs.refused = errors.New("connection refused")
		config := newFakes().config()
		config.Sources = []health.Source{errs}
		monitor := health.New(config)
		began := time.Now()
		run(t, monitor)
		time.Sleep(time.Hour)

		want, at := []time.Duration{0}, time.Duration(0)
		for _, delay := range []int{0, 1, 2, 4, 8, 16, 32, 64} {
			at += time.Duration(delay) * time.Second
			want = append(want, at)
		}

		for at += time.Minute; at <= time.Hour; at += time.Minute {
			want = append(want, at)
		}

		require.Equal(t, want, errs.ranAt(began))
		require.Equal(t, "connection refused", monitor.Sources()[0].Problem)

		// It comes back within a minute, and all is healthy from then on.
		errs.change(func() { errs.refused = nil })
		time.Sleep(time.Minute)
		require.True(t, monitor.Sources()[0].Connected, "want: the source is connected")
		require.Empty(t, monitor.Sources()[0].Problem, "want: a connected source has no problem")
	})
}

func TestReconnectBackoffResetsAfterAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errs := newSource("errors")
		config := newFakes().config()
		config.Sources = []health.Source{errs}
		run(t, health.New(config))

		// One that fails as soon as it is connected is not asked all the time.
		for range 5 {
			await.Send(t, errs.fail, errors.New("broken"), "the source to run, which is to fail")

			time.Sleep(10 * time.Second)
		}

		require.Len(t, errs.ranAt(time.Now()), 6, "want: the source is connected again with the first delays")

		time.Sleep(time.Hour)

		began := time.Now()
		await.Send(t, errs.fail, errors.New("broken"), "the source to run, which is to fail")

		synctest.Wait()

		ran := errs.ranAt(began)
		require.Equal(t, time.Duration(0), ran[len(ran)-1], "at once")
	})
}

// probesOf returns the seconds at which the subject is probed during that time.
func (w *fakes) probesOf(id string, during time.Duration) []time.Duration {
	began, at := time.Now(), []time.Duration{}

	// A millisecond behind the clock of the monitor.
	time.Sleep(time.Millisecond)

	for before := w.count(id); time.Since(began) < during; {
		time.Sleep(time.Second)
		synctest.Wait()

		for now := w.count(id); before < now; before++ {
			at = append(at, time.Since(began).Truncate(time.Second))
		}
	}

	return at
}

func TestThePeriodIsLongerWhileAllSourcesAreUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, one, other := newFakes("a"), newSource("one"), newSource("other")
		config := w.config()
		config.Sources = []health.Source{one, other}
		run(t, health.New(config))

		require.Equal(t, []time.Duration{5 * time.Minute, 10 * time.Minute}, w.probesOf("a", 12*time.Minute))

		// One fails, and can't be connected: two minutes have gone, so it is time.
		one.change(func() { one.refused = errors.New("refused") })

		before := w.count("a")

		await.Send(t, one.fail, errors.New("broken"), "the source to run, which is to fail")

		synctest.Wait()
		require.Equal(t, before+1, w.count("a"), "at once")

		probes := w.probesOf("a", 4*time.Minute+30*time.Second)
		require.Equal(t, []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}, probes)

		// It is connected again: what has happened before is found at once.
		one.change(func() { one.refused = nil })

		// At 30 s by the period, at 37 s (307 behind the failure, by the schedule)
		// because of the connection, and then by the longer period.
		probes = w.probesOf("a", 8*time.Minute)
		require.Equal(t, []time.Duration{30 * time.Second, 37 * time.Second, 337 * time.Second}, probes)
	})
}

func TestEventsLengthenTheRelistPeriod(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		settings health.Settings
		sources  []health.Source
		want     []time.Duration
	}{
		"defaults without sources": {want: []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute}},
		"defaults with sources":    {sources: []health.Source{newSource("errors")}},
		"own":                      {settings: health.Settings{RelistPeriod: 90 * time.Second}, want: []time.Duration{90 * time.Second, 3 * time.Minute}},
		"own with sources": {
			settings: health.Settings{EventedRelistPeriod: 2 * time.Minute}, sources: []health.Source{newSource("errors")},
			want: []time.Duration{2 * time.Minute},
		},
		"polling only": {
			settings: health.Settings{PollingOnly: true}, sources: []health.Source{newSource("errors")},
			want: []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				config := w.config()
				config.Settings = test.settings

				for _, each := range test.sources {
					// Its channel has to be of this bubble.
					config.Sources = append(config.Sources, newSource(each.Name()))
				}

				monitor := health.New(config)
				run(t, monitor)
				require.ElementsMatch(t, test.want, w.probesOf("a", 200*time.Second))

				if test.settings.PollingOnly {
					require.Empty(t, monitor.Sources(), "want: there are no sources with polling alone")
				}
			})
		})
	}
}

func TestARelistAtTheStartIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())
		require.NoError(t, monitor.Relist(t.Context()))
		run(t, monitor)
		require.Equal(t, 1, w.count("a"), "want: the relist at the start is not repeated")
		require.Equal(t, []time.Duration{time.Minute}, w.probesOf("a", 90*time.Second))
	})
}

func TestLostEventsProbeAllVolumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, errs := newFakes("a", "b"), newSource("errors")
		config := w.config()
		config.Sources = []health.Source{errs}
		monitor := health.New(config)
		run(t, monitor)
		time.Sleep(10 * time.Second)

		a := w.count("a")

		w.setReasons("b", health.IOErrors)
		errs.report(health.Lost, "")
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "b"))
		require.Equal(t, a+1, w.count("a"), "want: the lost event has the subject probed")

		// However many are lost, there is a second in between; none goes unheard.
		for range 300 {
			errs.report(health.Lost, "")
			time.Sleep(10 * time.Millisecond)
		}

		w.setReasons("a", health.DiskFailure)
		errs.report(health.Lost, "")
		// Longer than the interval, whose end would otherwise come in the same instant.
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		require.InDelta(t, a+5, w.count("a"), 1, "want: the lost event starts polling")
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))
	})
}

func TestPanicDisconnectsTheSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, errs := newFakes("a"), newSource("errors")
		config := w.config()
		config.Sources = []health.Source{panicking{errs}}
		monitor := health.New(config)
		run(t, monitor)
		require.False(t, monitor.Sources()[0].Connected, "want: the source is not connected")
		require.Contains(t, monitor.Sources()[0].Problem, "a defect")
		require.Equal(t, []time.Duration{time.Minute}, w.probesOf("a", 90*time.Second))
	})
}

type panicking struct{ *source }

func (panicking) Run(context.Context, func(), func(health.Event)) error { panic("a defect") }

func TestASourceThatEndsByItselfIsConnectedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errs := newSource("errors")
		config := newFakes("a").config()
		config.Sources = []health.Source{errs}
		monitor := health.New(config)
		run(t, monitor)

		await.Send(t, errs.fail, nil, "the source to run, which is to fail")

		synctest.Wait()
		require.Len(t, errs.runs, 2, "want: the ended source runs again")
		require.True(t, monitor.Sources()[0].Connected, "want: the source is connected")
	})
}

// TestTheFirstRelistFollowsTheSources connects them at once, late or never: what is probed before one is connected
// is probed again.
func TestTheFirstRelistFollowsTheSources(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change     func(*source)
		begin, end int
	}{
		"connected":   {change: func(*source) {}, begin: 1, end: 1},
		"unsupported": {change: func(s *source) { s.unsupported = errors.New("no tracefs in this kernel") }, begin: 1, end: 1},
		"failed":      {change: func(s *source) { s.refused = errors.New("no memory") }, begin: 1, end: 1},
		"late":        {change: func(s *source) { s.connectAfter = time.Second }, begin: 0, end: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, one, other := newFakes("a"), newSource("one"), newSource("other")
				test.change(other)

				config := w.config()
				config.Sources = []health.Source{one, other}
				run(t, health.New(config))

				time.Sleep(time.Millisecond)
				synctest.Wait()
				require.Equal(t, test.begin, w.count("a"), "want: probed when each source is connected, or has failed")

				time.Sleep(2 * time.Second)
				require.Equal(t, test.end, w.count("a"), "want: probed once more only for a source that is connected late")
			})
		})
	}
}
