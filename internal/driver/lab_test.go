package driver_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/child"
)

const module = "github.com/touchstone-csi/touchstone/"

// TestWithoutSettingsTheLabHasNoHooks: operations call nothing at their points, and calls pass no interceptor.
func TestWithoutSettingsTheLabHasNoHooks(t *testing.T) {
	t.Parallel()

	opened, none, err := driver.LabOf(driver.Config{})
	require.NoError(t, err)
	require.Equal(t, none, opened)
}

// TestTheDriverWithoutTheLab, with the tag nolab: the command compiles, and refuses each setting of the lab.
func TestTheDriverWithoutTheLab(t *testing.T) {
	t.Parallel()

	output, err := exec.CommandContext(t.Context(), "go", "list", "-tags=nolab", "-deps", module+"internal/driver").CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.NotContains(t, string(output), module+"internal/lab")

	binary := filepath.Join(t.TempDir(), "touchstone")
	require.NoError(t, child.BuildDriver(binary, "nolab"))

	for _, flag := range []string{
		"--faults=/rules", "--enable-faults", "--call-log=/log", "--strict", "--proxy-endpoint=unix:///other", "--proxy-listen=unix:///other",
	} {
		output, err := exec.CommandContext(t.Context(), binary, "serve", "--mode=controller", "--endpoint=unix:///csi.sock", flag).CombinedOutput()
		require.Error(t, err, "want: %s is refused", flag)

		name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		require.Contains(t, string(output), name)
		require.Contains(t, string(output), "without the tag nolab")
	}
}

// TestOnlyTheCompositionImportsTheLab, and its clients: what a driver author reads does not.
func TestOnlyTheCompositionImportsTheLab(t *testing.T) {
	t.Parallel()

	// Not all of the module: an ordinary user cannot read all directories that tests have made.
	output, err := exec.CommandContext(t.Context(), "go", "list", "-buildvcs=false", "-f", `{{.ImportPath}}:{{range .Imports}} {{.}}{{end}}`,
		module+"cmd/...", module+"internal/...", module+"pkg/...").CombinedOutput()
	require.NoError(t, err, "%s", output)

	var importing []string

	for line := range strings.Lines(string(output)) {
		name, imports, _ := strings.Cut(strings.TrimPrefix(line, module), ":")
		if strings.Contains(imports, module+"internal/lab") && !strings.HasPrefix(name, "internal/lab") {
			importing = append(importing, name)
		}
	}

	require.ElementsMatch(t, []string{"cmd/touchstone/internal/ctl", "internal/driver"}, importing)
}
