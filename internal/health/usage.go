package health

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// usageCollector exports the usage in the monitor's records; a scrape probes nothing.
type usageCollector struct {
	monitor       *Monitor
	prefix        string
	bytes, inodes *prometheus.Desc
}

// NewUsage returns a collector of the bytes and inodes in the monitor's records:
// touchstone_<what>_bytes and touchstone_<what>_inodes, with the labels what and kind
// (total, used or available), of the subjects whose ids begin with prefix. The label
// omits the prefix.
func NewUsage(monitor *Monitor, what, prefix string) prometheus.Collector {
	describe := func(unit string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, what, unit),
			"Total, used and available "+unit+" of a "+what+" at its last probe.", []string{what, "kind"}, nil)
	}

	return &usageCollector{monitor: monitor, prefix: prefix, bytes: describe("bytes"), inodes: describe("inodes")}
}

// Describe implements prometheus.Collector.
func (u *usageCollector) Describe(to chan<- *prometheus.Desc) {
	to <- u.bytes
	to <- u.inodes
}

// Collect implements prometheus.Collector.
func (u *usageCollector) Collect(to chan<- prometheus.Metric) {
	for _, record := range u.monitor.All() {
		name, ok := strings.CutPrefix(record.ID, u.prefix)
		if !ok || record.Usage == nil {
			continue
		}

		collect(to, u.bytes, name, record.Usage.Bytes)

		// A filesystem that allocates inodes on demand (btrfs) reports none.
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
