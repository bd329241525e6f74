package health_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

// metric is what a series says: its value; of a histogram also the sum.
type metric struct{ value, sum float64 }

// gather returns the series of a name by their labels' values, in the order of
// the labels' names, with a slash in between.
func gather(t *testing.T, registry *prometheus.Registry, name string) map[string]metric {
	t.Helper()

	families, err := registry.Gather()
	require.NoError(t, err)

	series := map[string]metric{}

	for _, family := range families {
		if family.GetName() != name {
			continue
		}

		for _, each := range family.GetMetric() {
			var labels []string
			for _, label := range each.GetLabel() {
				labels = append(labels, label.GetValue())
			}

			series[strings.Join(labels, "/")] = metric{
				value: each.GetCounter().GetValue() + each.GetGauge().GetValue() + float64(each.GetHistogram().GetSampleCount()),
				sum:   each.GetHistogram().GetSampleSum(),
			}
		}
	}

	return series
}

func values(t *testing.T, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()

	counts := map[string]float64{}
	for labels, each := range gather(t, registry, name) {
		counts[labels] = each.value
	}

	return counts
}

// abnormal returns the series of the conditions that are not 0.
func abnormal(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()

	series := values(t, registry, "touchstone_volume_conditions")
	for labels, count := range series {
		if count == 0 {
			delete(series, labels)
		}
	}

	return series
}

func TestEverySeriesBeginsAtZero(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	metrics := health.NewMetrics(registry)

	for _, view := range []string{"node", "controller"} {
		health.New(health.Config{Name: view, Settings: health.Settings{Metrics: metrics}, Sources: []health.Source{newSource("errors")}})
	}

	conditions := values(t, registry, "touchstone_volume_conditions")
	require.Len(t, conditions, 2*len(health.Reasons()), "want: each reason has a series for each view")

	for _, reason := range health.Reasons() {
		require.Contains(t, conditions, string(reason)+"/"+reason.Status().String()+"/node")
	}

	require.Empty(t, abnormal(t, registry), "want: no volume is unhealthy")

	for _, name := range []string{"missed_events_total", "probes_timed_out_total", "probe_errors_total"} {
		require.Equal(t, map[string]float64{"node": 0, "controller": 0}, values(t, registry, "touchstone_health_"+name), name)
	}

	for _, name := range []string{"source_connects_total", "source_errors_total", "source_up", "event_latency_seconds"} {
		require.Equal(t, map[string]float64{"errors/node": 0, "errors/controller": 0}, values(t, registry, "touchstone_health_"+name), name)
	}
}

func TestConditionsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry, w := prometheus.NewRegistry(), newFakes("a", "b", "c")
		w.setReasons("a", health.IOErrors)
		w.setReasons("b", health.IOErrors, health.FilesystemCorrupted)

		config := w.config()
		config.Metrics = health.NewMetrics(registry)
		config.ProbeTimeout = time.Second
		monitor := health.New(config)
		relist(t, monitor)
		relist(t, monitor)
		require.Equal(t, map[string]float64{"IOErrors/DEGRADED/node": 2, "FilesystemCorrupted/DATA_LOSS/node": 1}, abnormal(t, registry))
		require.InDelta(t, 2, values(t, registry, "touchstone_health_relist_duration_seconds")["node"], 0, "want: both relists are measured")

		w.setReasons("a")
		w.change(func() { w.ids = []string{"a", "c"}; w.panics["a"] = "a defect" })

		release := w.hang("c")
		relist(t, monitor)
		require.Equal(t, map[string]float64{"IOErrors/DEGRADED/node": 1, "ProbeTimedOut/DEGRADED/node": 2}, abnormal(t, registry))
		require.InDelta(t, 1, values(t, registry, "touchstone_health_probes_timed_out_total")["node"], 0, "want: the timeout is counted once")
		require.InDelta(t, 1, values(t, registry, "touchstone_health_probe_errors_total")["node"], 0, "want: the error is counted once")

		monitor.Forget("a")
		release()
		synctest.Wait()
		require.Empty(t, abnormal(t, registry), "want: no volume is unhealthy")
		require.InDelta(t, 1, gather(t, registry, "touchstone_health_relist_duration_seconds")["node"].sum, 0.01, "the one that waited")
	})
}

func TestMetricsOfSourcesAndEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry, w, errs := prometheus.NewRegistry(), newFakes("a"), newSource("errors")
		config := w.config()
		config.Metrics = health.NewMetrics(registry)
		config.Sources = []health.Source{errs}
		run(t, health.New(config))

		const latency = "touchstone_health_event_latency_seconds"

		require.Equal(t, map[string]float64{"errors/node": 1}, values(t, registry, "touchstone_health_source_up"))
		require.Equal(t, map[string]float64{"errors/node": 1}, values(t, registry, "touchstone_health_source_connects_total"))
		require.Zero(t, gather(t, registry, latency)["errors/node"].value, "want: no latency is measured without an event")

		time.AfterFunc(30*time.Millisecond, w.hang("a"))
		errs.report(health.IOError, "a")
		errs.report(health.IOError, "a")
		errs.report(health.MountsChanged, "")
		errs.report(health.Lost, "")
		time.Sleep(10 * time.Second)

		require.Equal(t, map[string]float64{"io-error/errors/node": 2, "mounts-changed/errors/node": 1, "lost/errors/node": 1},
			values(t, registry, "touchstone_health_events_total"))

		measured := gather(t, registry, latency)["errors/node"]
		require.InDelta(t, 2, measured.value, 0, "the second one is answered by the look behind the first")
		require.InDelta(t, 0.06, measured.sum, 0.001, "want: the latencies add up to 60 ms")

		errs.change(func() { errs.refused = errors.New("refused") })

		await.Send(t, errs.fail, errors.New("broken"), "the source to run, which is to fail")

		time.Sleep(time.Millisecond)
		require.Equal(t, map[string]float64{"errors/node": 0}, values(t, registry, "touchstone_health_source_up"))
		require.Equal(t, map[string]float64{"errors/node": 2}, values(t, registry, "touchstone_health_source_errors_total"))
		require.Equal(t, map[string]float64{"errors/node": 1}, values(t, registry, "touchstone_health_source_connects_total"))
	})
}

func TestLatencyIncludesInconclusiveProbes(t *testing.T) {
	t.Parallel()

	for first, want := range map[error]float64{health.ErrKeep: 0.5, errors.New("broken"): 0} {
		synctest.Test(t, func(t *testing.T) {
			registry, w, errs := prometheus.NewRegistry(), newFakes("a"), newSource("errors")
			config := w.config()
			config.Metrics = health.NewMetrics(registry)
			config.Sources = []health.Source{errs}
			run(t, health.New(config))
			w.change(func() { w.errs["a"] = first })
			errs.report(health.IOError, "a")
			time.Sleep(450 * time.Millisecond)
			w.change(func() { delete(w.errs, "a") })
			time.Sleep(time.Minute)

			measured := gather(t, registry, "touchstone_health_event_latency_seconds")["errors/node"]
			require.InDelta(t, 1, measured.value, 0, "want: one latency is measured")
			require.InDelta(t, want, measured.sum, 0.01, "want: the latency lasts until the probe that can decide, or fails")
		})
	}
}

// stage is a monitor with one event source.
type stage struct {
	t       *testing.T
	w       *fakes
	errs    *source
	monitor *health.Monitor
}

// TestMissedEventsAreCounted for a volume that becomes unhealthy with or without an event, if a
// relist finds it.
func TestMissedEventsAreCounted(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		act  func(s stage)
		want float64
	}{
		"nothing happens": {func(stage) {}, 0},
		"no event": {
			func(s stage) { s.w.setReasons("a", health.IOErrors, health.ReadOnlyRemount) }, 2,
		},
		"no event of the end": {func(s stage) {
			s.w.setReasons("b")
			require.Equal(s.t, []health.Reason{health.DiskFailure}, reasons(s.t, s.monitor, "b"))
		}, 0}, // it is found by the next probe of what is unhealthy, which needs no event
		"a reason without a source": {func(s stage) { s.w.setReasons("a", health.OutOfCapacity) }, 0},
		"an event": {func(s stage) {
			s.w.setReasons("a", health.IOErrors)
			s.errs.report(health.IOError, "a")
		}, 0},
		"a service reports it": {func(s stage) {
			s.w.setReasons("a", health.IOErrors)
			s.monitor.Suspect("a")
		}, 0},
		"events are lost": {func(s stage) {
			s.w.setReasons("a", health.IOErrors)
			s.errs.report(health.Lost, "")
		}, 0},
		"events were lost": {func(s stage) {
			s.errs.report(health.Lost, "")
			time.Sleep(2 * time.Second)
			s.w.setReasons("a", health.IOErrors)
		}, 1},
		"the source fails": {func(s stage) {
			s.w.setReasons("a", health.IOErrors)
			await.Send(s.t, s.errs.fail, errors.New("broken"), "the source to run, which is to fail")
		}, 0},
		"the source is down": {func(s stage) {
			s.errs.change(func() { s.errs.refused = errors.New("refused") })
			await.Send(s.t, s.errs.fail, errors.New("broken"), "the source to run, which is to fail")

			time.Sleep(3*time.Minute + time.Second)
			s.w.setReasons("a", health.IOErrors)
		}, 0},
		"it is new": {func(s stage) {
			s.w.setReasons("c", health.IOErrors)
			s.w.change(func() { s.w.ids = append(s.w.ids, "c") })
		}, 0},
		"its probe hangs": {func(s stage) { s.t.Cleanup(s.w.hang("a")) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				s := stage{t: t, w: newFakes("a", "b"), errs: newSource("errors")}
				s.w.setReasons("b", health.DiskFailure)

				config := s.w.config()
				config.Metrics = health.NewMetrics(registry)
				config.Sources = []health.Source{s.errs}
				s.monitor = health.New(config)
				require.NoError(t, s.monitor.Relist(t.Context()))
				run(t, s.monitor)
				time.Sleep(time.Second)

				test.act(s)
				time.Sleep(11 * time.Minute)
				require.InDelta(t, test.want, values(t, registry, "touchstone_health_missed_events_total")["node"], 0, "want: the missed events are counted")
			})
		})
	}
}

// TestNoEventIsMissedWithoutASource, or with an unsupported one.
func TestNoEventIsMissedWithoutASource(t *testing.T) {
	t.Parallel()

	for name, names := range map[string][]string{"no source": nil, "one of two": {"here", "missing"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				registry, w := prometheus.NewRegistry(), newFakes("a")
				config := w.config()
				config.Metrics = health.NewMetrics(registry)

				for _, name := range names {
					each := newSource(name)
					if name == "missing" {
						each.unsupported = errors.New("no tracefs in this kernel")
					}

					config.Sources = append(config.Sources, each)
				}

				monitor := health.New(config)
				run(t, monitor)
				time.Sleep(10 * time.Minute)
				w.setReasons("a", health.IOErrors)
				time.Sleep(10 * time.Minute)
				require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
				require.Zero(t, values(t, registry, "touchstone_health_missed_events_total")["node"], "want: no event is missed without a source")
			})
		})
	}
}
