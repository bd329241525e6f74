//go:build promtool

package monitoring_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

func TestPrometheusUnderstandsTheAlerts(t *testing.T) {
	t.Parallel()

	for _, args := range [][]string{{"check", "rules", alertsFile}, {"test", "rules", "testdata/alerts.yaml"}} {
		output, err := child.Command(t, "promtool", args...).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}
