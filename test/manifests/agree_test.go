package manifests_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

// overlays are the ways to install. Each has a file of values in the chart and a
// directory for kustomize.
var overlays = []string{"single-node", "shared-pool", "node-local", "snapshot-metadata", "testing"}

// TestRenderedIsUpToDate fails when the chart or a module has changed and `make
// manifests` was not run.
func TestRenderedIsUpToDate(t *testing.T) {
	t.Parallel()

	base, err := manifests.Base(manifests.ChartDir)
	require.NoError(t, err)
	requireFiles(t, filepath.Join(manifests.KustomizeDir, "base"), base)

	types, err := manifests.CRDs(t.Context())
	require.NoError(t, err)
	requireFiles(t, filepath.Join(manifests.KustomizeDir, "prerequisites", "crds"), types)
}

func requireFiles(t *testing.T, directory string, want map[string]string) {
	t.Helper()

	found, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	require.NoError(t, err)

	is := map[string]string{}

	for _, path := range found {
		text, err := os.ReadFile(path)
		require.NoError(t, err)

		is[filepath.Base(path)] = string(text)
	}

	delete(is, "kustomization.yaml")
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(is)), "run `make manifests`")

	for name := range want {
		// Not Equal: that would print both.
		require.Zero(t, strings.Compare(want[name], is[name]), "%s is not what it should be: run `make manifests`", name)
	}
}

// TestChartAndKustomizeAgree compares object by object what both make.
func TestChartAndKustomizeAgree(t *testing.T) {
	t.Parallel()

	for _, name := range append([]string{"base"}, overlays...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			chart, plain := rendered(t, name), built(t, name)

			if name == "shared-pool" {
				// What the pool is, is an example in the one and nothing in the other.
				delete(plain, "PersistentVolume touchstone-pool")
				delete(plain, "PersistentVolumeClaim touchstone/touchstone-pool")
			}

			require.Equal(t, slices.Sorted(maps.Keys(chart)), slices.Sorted(maps.Keys(plain)))

			for id, object := range chart {
				require.Empty(t, differences(id, object.Fields, plain[id].Fields), "the chart's is wanted")
			}
		})
	}
}

// TestEveryOverlayIsListed above.
func TestEveryOverlayIsListed(t *testing.T) {
	t.Parallel()

	inKustomize, err := filepath.Glob(filepath.Join(manifests.KustomizeDir, "overlays", "*", "kustomization.yaml"))
	require.NoError(t, err)

	inChart, err := filepath.Glob(filepath.Join(manifests.ChartDir, "values", "*.yaml"))
	require.NoError(t, err)

	var plain, chart []string
	for _, path := range inKustomize {
		plain = append(plain, filepath.Base(filepath.Dir(path)))
	}

	for _, path := range inChart {
		chart = append(chart, strings.TrimSuffix(filepath.Base(path), ".yaml"))
	}

	require.ElementsMatch(t, overlays, plain)
	require.ElementsMatch(t, append([]string{"base"}, overlays...), chart)
}

// TestHelmFindsTheNamespace that it installs into, with each file of values: it can
// make none, for it keeps its release there, and takes over none that is there.
func TestHelmFindsTheNamespace(t *testing.T) {
	t.Parallel()

	for _, name := range overlays {
		values, err := manifests.ReadValues(manifests.ValuesFile(manifests.ChartDir, name))
		require.NoError(t, err)
		require.NotContains(t, renderedWith(t, values), "Namespace "+manifests.Namespace, name)
		require.Contains(t, rendered(t, name), "Namespace "+manifests.Namespace, name)
	}
}

// TestASecondInstallationSharesNoObject with the first.
func TestASecondInstallationSharesNoObject(t *testing.T) {
	t.Parallel()

	second := renderedWith(t, map[string]any{"fullnameOverride": "another", "driverName": "another.example.com"})
	for id := range rendered(t, "single-node") {
		require.NotContains(t, second, id)
	}
}

func rendered(t *testing.T, overlay string) map[string]manifests.Object {
	t.Helper()

	values, err := manifests.ReadValues(manifests.ValuesFile(manifests.ChartDir, overlay))
	require.NoError(t, err)

	files, err := manifests.Prepared().Render(manifests.ChartDir, values, manifests.PlainValues())
	require.NoError(t, err)

	return decoded(t, manifests.Plain(files))
}

func renderedWith(t *testing.T, values ...map[string]any) map[string]manifests.Object {
	t.Helper()

	files, err := manifests.Prepared().Render(manifests.ChartDir, values...)
	require.NoError(t, err)

	return decoded(t, files)
}

func decoded(t *testing.T, files map[string]string) map[string]manifests.Object {
	t.Helper()

	objects, err := manifests.Decode(strings.Join(slices.Collect(maps.Values(files)), "---\n"))
	require.NoError(t, err)

	return objects
}

func built(t *testing.T, name string) map[string]manifests.Object {
	t.Helper()

	text, err := manifests.Build(kustomizeDir(name))
	require.NoError(t, err)

	objects, err := manifests.Decode(text)
	require.NoError(t, err)

	return objects
}

func kustomizeDir(name string) string {
	if slices.Contains(overlays, name) {
		return filepath.Join(manifests.KustomizeDir, "overlays", name)
	}

	return filepath.Join(manifests.KustomizeDir, name)
}
