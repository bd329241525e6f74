package leftover

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// InMetrics returns a finding for each series with the id of an object that has gone.
func InMetrics(from prometheus.Gatherer, objects Objects) ([]Finding, error) {
	families, err := from.Gather()
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}

	var found []Finding

	for _, family := range families {
		for _, each := range family.GetMetric() {
			for _, pair := range each.GetLabel() {
				for _, id := range objects.gone(pair.GetValue()) {
					found = append(found, Finding{Series, fmt.Sprintf("%s of %s, label %s", family.GetName(), id, pair.GetName())})
				}
			}
		}
	}

	return sorted(found), nil
}
