package health

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// usage tells at each scrape what is used of a monitor's subjects, from what is
// kept: it looks at nothing.
type usage struct {
	monitor       *Monitor
	prefix        string
	bytes, inodes *prometheus.Desc
}

// NewUsage returns a collector of the bytes and inodes of the monitor's subjects,
// as far as they are known: touchstone_<what>_bytes and touchstone_<what>_inodes,
// with the labels what and kind, which is total, used or available. Subjects are
// those whose ids begin with prefix, which is left out of the label.
func NewUsage(monitor *Monitor, what, prefix string) prometheus.Collector {
	describe := func(unit string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, what, unit),
			"What a "+what+" has of "+unit+", in all, used and left, when it was last looked at.", []string{what, "kind"}, nil)
	}

	return &usage{monitor: monitor, prefix: prefix, bytes: describe("bytes"), inodes: describe("inodes")}
}

// Describe implements prometheus.Collector.
func (u *usage) Describe(to chan<- *prometheus.Desc) {
	to <- u.bytes
	to <- u.inodes
}

// Collect implements prometheus.Collector.
func (u *usage) Collect(to chan<- prometheus.Metric) {
	for _, record := range u.monitor.All() {
		name, ok := strings.CutPrefix(record.ID, u.prefix)
		if !ok || record.Usage == nil {
			continue
		}

		collect(to, u.bytes, name, record.Usage.Bytes)

		// A filesystem that makes them as it needs them has no number of inodes.
		if record.Usage.Inodes.Total > 0 {
			collect(to, u.inodes, name, record.Usage.Inodes)
		}
	}
}

func collect(to chan<- prometheus.Metric, what *prometheus.Desc, name string, amount Amount) {
	for kind, value := range map[string]int64{"total": amount.Total, "used": amount.Used, "available": amount.Available} {
		to <- prometheus.MustNewConstMetric(what, prometheus.GaugeValue, float64(value), name, kind)
	}
}
