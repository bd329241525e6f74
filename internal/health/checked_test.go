package health_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

func TestCheckMetricsBeginAtZero(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	metrics := health.NewMetrics(registry)

	require.Len(t, values(t, registry, "touchstone_filesystem_checks_total"), 12, "want: each kind of result has a series before the first check")
	require.Zero(t, values(t, registry, "touchstone_filesystem_checks_total")["online/damaged"], "want: the series begins at zero")

	metrics.Checked("online", "ext4", "damaged", time.Second)
	require.InDelta(t, 1, values(t, registry, "touchstone_filesystem_checks_total")["online/damaged"], 0, "want: the damage is counted")
	require.InDelta(t, 1, values(t, registry, "touchstone_filesystem_check_duration_seconds")["ext4/online"], 0, "want: the check's duration is measured")
	require.Len(t, values(t, registry, "touchstone_filesystem_checks_total"), 12, "want: the series stay the same")
}
