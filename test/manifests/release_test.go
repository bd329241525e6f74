package manifests_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/manifests"
)

// TestReleaseNotesAreTheVersionsSection of the changelog, whose links work outside of the repository.
func TestReleaseNotesAreTheVersionsSection(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile(filepath.Join(manifests.ChartDir, "Chart.yaml"))
	require.NoError(t, err)

	var chart struct{ Version string }
	require.NoError(t, yaml.Unmarshal(text, &chart))

	changes, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)

	_, section, found := strings.Cut(string(changes), "\n## "+chart.Version+" ")
	require.True(t, found, "want: the changelog has a section %s", chart.Version)

	_, section, _ = strings.Cut(section, "\n")
	section, _, _ = strings.Cut(section, "\n## ")

	notes := child.Command(t, "hack/dist.sh", "--version", "v"+chart.Version, "--notes")
	notes.Dir = "../.."

	printed, err := notes.Output()
	require.NoError(t, err)

	const repository = "https://github.com/touchstone-csi/touchstone/blob/v"

	require.Contains(t, string(printed), "]("+repository+chart.Version+"/docs/")
	require.Equal(t, strings.TrimSpace(section), strings.TrimSpace(strings.ReplaceAll(string(printed), repository+chart.Version+"/", "")))

	unknown := child.Command(t, "hack/dist.sh", "--version", "v99.0.0", "--notes")
	unknown.Dir = "../.."

	said, err := unknown.CombinedOutput()
	require.Error(t, err, "want: a version without a section is refused")
	require.Contains(t, string(said), "CHANGELOG.md has no section 99.0.0")
}

// TestPackagesAreForThisMachine unless ARCH names others.
func TestPackagesAreForThisMachine(t *testing.T) {
	t.Parallel()

	for want, args := range map[string][]string{
		`--arch "` + runtime.GOARCH + `"`: {"-n", "packages"}, `--arch "amd64 arm64"`: {"-n", "packages", "ARCH=amd64 arm64"},
	} {
		command := child.Command(t, "make", args...)
		command.Dir = "../.."

		printed, err := command.Output()
		require.NoError(t, err)
		require.Contains(t, string(printed), want)
	}
}

// TestReleasedChartInstallsTheReleasedImage, and has the changelog and no editor's files.
func TestReleasedChartInstallsTheReleasedImage(t *testing.T) {
	t.Parallel()

	source, out := filepath.Join(t.TempDir(), "touchstone"), t.TempDir()
	// The chart has links to files outside of it.
	require.NoError(t, child.Command(t, "cp", "-rL", manifests.ChartDir, source).Run())
	require.NoError(t, os.WriteFile(filepath.Join(source, "values.yaml.swp"), nil, 0o600))

	changelog, err := filepath.Abs("../../CHANGELOG.md")
	require.NoError(t, err)

	said, err := child.Go(t, "../../hack/dist", "run", ".", "chart", "-version", "1.2.3", "-app-version", "v1.2.3",
		"-repository", "registry.example.com/team/touchstone", "-out", out, source, changelog).CombinedOutput()
	require.NoError(t, err, string(said))
	require.FileExists(t, filepath.Join(out, "touchstone-1.2.3.chart.oci.tar"))

	packed := filepath.Join(out, "touchstone-1.2.3.tgz")
	chart, err := loader.Load(packed)
	require.NoError(t, err)

	files := map[string]bool{}
	for _, file := range chart.Raw {
		files[file.Name] = true
	}

	require.True(t, files["CHANGELOG.md"], "want: the chart has the changelog")
	require.False(t, files["values.yaml.swp"], "want: .helmignore leaves it out")
	require.Contains(t, chart.Metadata.Annotations["artifacthub.io/images"], "registry.example.com/team/touchstone:v1.2.3")

	rendered, err := manifests.Prepared().Render(packed)
	require.NoError(t, err)

	for _, each := range workloads(decoded(t, rendered)) {
		require.Equal(t, "registry.example.com/team/touchstone:v1.2.3", each.driver().Image, each.id)
	}
}
