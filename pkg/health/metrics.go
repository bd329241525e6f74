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

// Metrics are the monitors' Prometheus metrics. Each has the label view, which
// is the monitor's name. Those of checks of filesystems have none.
type Metrics struct {
	connects, failures, events *prometheus.CounterVec
	missed, timedOut, errors   *prometheus.CounterVec
	up, conditions             *prometheus.GaugeVec
	latency, relist            *prometheus.HistogramVec
	checks                     *prometheus.CounterVec
	checkDuration              *prometheus.HistogramVec
}

// NewMetrics returns metrics that are registered with the registerer, which must
// have none of them yet; nil registers them nowhere.
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
		connects: counter("source_connects_total", "How often a source of events has connected.", labelSource),
		failures: counter("source_errors_total", "How often a source of events has failed, or could not connect.", labelSource),
		events:   counter("events_total", "Events that sources have told of.", labelSource, "kind"),
		missed: counter("missed_events_total",
			"Changes of conditions that a relist has found and no event had told of, though all sources were up."),
		timedOut: counter("probes_timed_out_total", "Looks that did not finish in time."),
		errors:   counter("probe_errors_total", "Looks that failed or panicked."),
		up: made.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "source_up", Help: "Whether a source of events is connected.",
		}, []string{labelView, labelSource}),
		conditions: made.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "volume_conditions", Help: "Volumes (in the view storage: pools and the state) by what is the matter.",
		}, []string{labelView, "reason", "status"}),
		latency: histogram("event_latency_seconds", "From when a source learnt of an event to the condition that it led to.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, labelSource),
		relist: histogram("relist_duration_seconds", "Time taken to look at everything.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}),
		checks: made.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "filesystem_checks_total", Help: "Checks of filesystems by how they were made and what they found.",
		}, []string{labelHow, "verdict"}),
		checkDuration: made.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "filesystem_check_duration_seconds", Help: "Time taken by checks of filesystems.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{labelHow, "fstype"}),
	}
	metrics.beginChecks()

	return metrics
}

// beginChecks has the counts of checks begin at 0, so that the first damage is an
// increase.
func (m *Metrics) beginChecks() {
	for _, how := range []string{"stage", "offline", "online"} {
		for _, verdict := range []string{"clean", "repaired", "damaged", "failed"} {
			m.checks.WithLabelValues(how, verdict)
		}
	}
}

// Checked counts a check of a filesystem: how it was made, and what it found. A
// nil Metrics counts nothing.
func (m *Metrics) Checked(how, fsType, verdict string, took time.Duration) {
	if m == nil {
		return
	}

	m.checks.WithLabelValues(how, verdict).Inc()
	m.checkDuration.WithLabelValues(how, fsType).Observe(took.Seconds())
}

// measured are the metrics of one view.
type measured struct {
	*Metrics

	view string
}

// measure has every series of the view begin at 0: what is not there can't be
// alerted on.
func (m *Metrics) measure(view string, sources []Source) measured {
	if m == nil {
		m = NewMetrics(nil)
	}

	for _, each := range traits() {
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

	return measured{Metrics: m, view: view}
}

func (m measured) changed(changes []Change) {
	for _, change := range changes {
		gauge := m.conditions.WithLabelValues(m.view, string(change.Reason), change.Status.String())

		if change.Cleared {
			gauge.Dec()
		} else {
			gauge.Inc()
		}
	}
}

func (m measured) answered(source string, took time.Duration) {
	m.latency.WithLabelValues(m.view, source).Observe(took.Seconds())
}

func (m measured) sourceUp(source string, up bool) {
	value := 0.0
	if up {
		value = 1
	}

	m.up.WithLabelValues(m.view, source).Set(value)
}
