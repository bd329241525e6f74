package lab_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/lab"
)

const module = "github.com/touchstone-csi/touchstone/"

// TestALabWithoutSettingsHasNoEffect: operations call nothing at their points, and the server has no
// interceptors of it.
func TestALabWithoutSettingsHasNoEffect(t *testing.T) {
	t.Parallel()

	l, err := lab.New(lab.Config{}, prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, l.Load())
	require.Nil(t, l.Point())
	require.Nil(t, l.Conditions())
	require.NoError(t, l.Start(t.Context()))
	require.Empty(t, l.Options())
	require.Empty(t, l.Manifest())
	require.Empty(t, l.Reports())

	unary, streams := l.Interceptors()
	require.Empty(t, unary)
	require.Empty(t, streams)

	l.Run(t.Context())
	l.Drain()
	require.NoError(t, l.Close())
}

// TestTheDriverCompilesWithoutTheLab, with the tag nolab.
func TestTheDriverCompilesWithoutTheLab(t *testing.T) {
	t.Parallel()

	run := func(args ...string) string {
		output, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
		require.NoError(t, err, "%s", output)

		return string(output)
	}

	require.NotContains(t, run("list", "-tags=nolab", "-deps", module+"pkg/driver"), module+"internal/lab")
	run("build", "-tags=nolab", module+"pkg/driver")
}

// TestOnlyTheCompositionImportsTheLab: what a driver author reads does not.
func TestOnlyTheCompositionImportsTheLab(t *testing.T) {
	t.Parallel()

	output, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}:{{range .Imports}} {{.}}{{end}}`, module+"...").Output()
	require.NoError(t, err)

	for line := range strings.Lines(string(output)) {
		name, imports, _ := strings.Cut(strings.TrimPrefix(line, module), ":")

		switch name, _, _ = strings.Cut(name, "/"); {
		case !strings.Contains(imports, module+"internal/lab"):
		case strings.HasPrefix(line, module+"internal/lab"), strings.HasPrefix(line, module+"internal/cli/ctl:"),
			strings.HasPrefix(line, module+"pkg/driver:"), strings.HasPrefix(line, module+"pkg/touchstonetest:"), name == "cmd", name == "test":
		default:
			t.Errorf("imports the lab: %s", line)
		}
	}
}
