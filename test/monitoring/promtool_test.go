//go:build promtool

package monitoring_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrometheusUnderstandsTheAlerts(t *testing.T) {
	t.Parallel()

	for _, args := range [][]string{{"check", "rules", alertsFile}, {"test", "rules", "testdata/alerts.yaml"}} {
		output, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}
