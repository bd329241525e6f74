package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	namespace   = "touchstone"
	subsystem   = "health"
	labelView   = "view"
	labelSource = "source"
	labelHow    = "how"
)

// Metrics are the monitors' Prometheus metrics. Each has the label view, the monitor's
// name, except for those of filesystem checks.
type Metrics struct {
	connects, failures, events *prometheus.CounterVec
	missed, timedOut, errors   *prometheus.CounterVec
	up, conditions             *prometheus.GaugeVec
	latency, relist            *prometheus.HistogramVec
	checks                     *prometheus.CounterVec
	checkDuration              *prometheus.HistogramVec
}

// NewMetrics returns metrics registered with registerer, which must not have them yet;
// nil registers them nowhere.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	made := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help},
			append([]string{labelView}, labels...))
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return made.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets},
			append([]string{labelView}, labels...))
	}

	metrics := &Metrics{
		connects: counter("source_connects_total", "Connections of an event source.", labelSource),
		failures: counter("source_errors_total", "Failures of an event source, including failed connections.", labelSource),
		events:   counter("events_total", "Events that sources have reported.", labelSource, "kind"),
		missed: counter("missed_events_total",
			"Changes of conditions that a relist found without a preceding event, although all sources were connected."),
		timedOut: counter("probes_timed_out_total", "Probes that timed out."),
		errors:   counter("probe_errors_total", "Probes that failed or panicked."),
		up: made.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "source_up", Help: "Whether an event source is connected.",
		}, []string{labelView, labelSource}),
		conditions: made.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "volume_conditions", Help: "Number of volumes (in the view storage: pools and the state) by reason.",
		}, []string{labelView, "reason", "status"}),
		latency: histogram("event_latency_seconds", "Time from an event at its source to the condition that it led to.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, labelSource),
		relist: histogram("relist_duration_seconds", "Duration of relists.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}),
		checks: made.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "filesystem_checks_total", Help: "Filesystem checks by kind and verdict.",
		}, []string{labelHow, "verdict"}),
		checkDuration: made.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "filesystem_check_duration_seconds", Help: "Duration of filesystem checks.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{labelHow, "fstype"}),
	}
	metrics.initChecks()

	return metrics
}

// initChecks starts the counters of checks at 0, so that the first damage is an
// increase.
func (m *Metrics) initChecks() {
	for _, how := range []string{"stage", "offline", "online"} {
		for _, verdict := range []string{"clean", "repaired", "damaged", "failed"} {
			m.checks.WithLabelValues(how, verdict)
		}
	}
}

// Checked counts a filesystem check by its kind and verdict. A nil Metrics counts
// nothing.
func (m *Metrics) Checked(how, fsType, verdict string, took time.Duration) {
	if m == nil {
		return
	}

	m.checks.WithLabelValues(how, verdict).Inc()
	m.checkDuration.WithLabelValues(how, fsType).Observe(took.Seconds())
}

// viewMetrics has the metrics of one view.
type viewMetrics struct {
	*Metrics

	view string
}

// forView starts every series of the view at 0, because alerts need existing series.
func (m *Metrics) forView(view string, sources []Source) viewMetrics {
	if m == nil {
		m = NewMetrics(nil)
	}

	for _, each := range reasonInfos {
		m.conditions.WithLabelValues(view, string(each.reason), each.status.String())
	}

	for _, each := range []*prometheus.CounterVec{m.missed, m.timedOut, m.errors} {
		each.WithLabelValues(view)
	}

	for _, source := range sources {
		m.up.WithLabelValues(view, source.Name())
		m.connects.WithLabelValues(view, source.Name())
		m.failures.WithLabelValues(view, source.Name())
		m.latency.WithLabelValues(view, source.Name())
	}

	return viewMetrics{Metrics: m, view: view}
}

func (m viewMetrics) countChanges(changes []Change) {
	for _, change := range changes {
		gauge := m.conditions.WithLabelValues(m.view, string(change.Reason), change.Status.String())

		if change.Cleared {
			gauge.Dec()
		} else {
			gauge.Inc()
		}
	}
}

// countMissed counts the changes that an event should have preceded.
func (m viewMetrics) countMissed(changes []Change) {
	for _, change := range changes {
		if change.Reason.Evented() {
			m.missed.WithLabelValues(m.view).Inc()
		}
	}
}

func (m viewMetrics) observeLatency(source string, took time.Duration) {
	m.latency.WithLabelValues(m.view, source).Observe(took.Seconds())
}

func (m viewMetrics) setSourceUp(source string, up bool) {
	value := 0.0
	if up {
		value = 1
	}

	m.up.WithLabelValues(m.view, source).Set(value)
}
