package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

func TestUsageMetricsNeedAnObservation(t *testing.T) {
	t.Parallel()

	monitor := health.New(health.Config{Name: "storage", List: func() []string { return nil }})
	for id, known := range map[string]*health.Usage{
		"pool a":  {Bytes: health.Amount{Total: 10, Used: 7, Available: 3}, Inodes: health.Amount{Total: 5, Used: 1, Available: 4}},
		"pool b":  {Bytes: health.Amount{Total: 20, Used: 20}},
		"pool c":  nil,
		"state":   {Bytes: health.Amount{Total: 30}},
		"volume1": {Bytes: health.Amount{Total: 40}},
	} {
		require.True(t, monitor.Set(id, health.Observation{Usage: known}, time.Now()), "want: Set takes the observation")
	}

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(health.NewUsage(monitor, "pool", "pool "))

	families, err := registry.Gather()
	require.NoError(t, err)

	told := map[string]float64{}

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := metric.GetLabel() // in the order of their names
			name := strings.Join([]string{family.GetName(), labels[0].GetValue(), labels[1].GetValue()}, " ")
			told[name] = metric.GetGauge().GetValue()
		}
	}

	require.Equal(t, map[string]float64{
		"touchstone_pool_bytes total a":      10,
		"touchstone_pool_bytes used a":       7,
		"touchstone_pool_bytes available a":  3,
		"touchstone_pool_bytes total b":      20,
		"touchstone_pool_bytes used b":       20,
		"touchstone_pool_bytes available b":  0,
		"touchstone_pool_inodes total a":     5,
		"touchstone_pool_inodes used a":      1,
		"touchstone_pool_inodes available a": 4,
	}, told)
}
