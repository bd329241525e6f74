package faults

import (
	"maps"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
	"github.com/touchstone-csi/touchstone/internal/health"
)

var (
	activeDescription = prometheus.NewDesc("touchstone_fault_rules_active", "Number of active fault rules.", nil, nil)
	hitsDescription   = prometheus.NewDesc("touchstone_fault_hits_total", "Hits of a fault rule, also of one that was cleared.",
		[]string{"rule"}, nil)
)

// Describe implements prometheus.Collector.
func (i *Injector) Describe(to chan<- *prometheus.Desc) {
	to <- activeDescription
	to <- hitsDescription
}

// Collect implements prometheus.Collector.
func (i *Injector) Collect(to chan<- prometheus.Metric) {
	i.mu.Lock()
	total, count := maps.Clone(i.hits.total), len(i.rules.active)

	for _, each := range i.rules.active {
		total[each.Name] += 0
	}
	i.mu.Unlock()

	to <- prometheus.MustNewConstMetric(activeDescription, prometheus.GaugeValue, float64(count))

	for rule, hits := range total {
		to <- prometheus.MustNewConstMetric(hitsDescription, prometheus.CounterValue, float64(hits), rule)
	}
}

// maxManifest bounds the names in the manifest, whose size the spec limits.
const maxManifest = 1024

// Manifest returns the entries of GetPluginInfo's manifest that show the active rules.
func (i *Injector) Manifest() map[string]string {
	rules, _ := i.List()
	names := make([]string, 0, len(rules))

	for _, each := range rules {
		names = append(names, each.Name)
	}

	return map[string]string{"faults": shorten.End(strings.Join(names, ","), maxManifest)}
}

// Reports describes the active rules in the health report.
func (i *Injector) Reports() []health.FaultReport {
	rules, fileError := i.List()
	reports := make([]health.FaultReport, 0, len(rules)+1)

	for _, each := range rules {
		reports = append(reports, health.FaultReport{Rule: each.Name, At: each.Method, Act: each.Act, Hits: each.Hits})
	}

	if fileError != "" {
		reports = append(reports, health.FaultReport{Problem: fileError})
	}

	return reports
}
