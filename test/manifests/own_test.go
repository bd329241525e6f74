package manifests_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

// readmeFile has the overlay that a user may begin their own with.
const readmeFile = "../../deploy/README.md"

// TestCustomOverlayChangesNothingElse than its text says.
func TestCustomOverlayChangesNothingElse(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile(readmeFile)
	require.NoError(t, err)

	_, own, found := strings.Cut(string(text), "```yaml\n")
	require.True(t, found, "want: the document has an example in YAML")

	own, _, found = strings.Cut(own, "```\n")
	require.True(t, found, "want: the example has an end")

	directory := t.TempDir()
	require.NoError(t, os.CopyFS(directory, os.DirFS(manifests.KustomizeDir)))

	place := filepath.Join(directory, "overlays", "own")
	require.NoError(t, os.Mkdir(place, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(place, "kustomization.yaml"), []byte(own), 0o600))

	made, err := manifests.Build(place)
	require.NoError(t, err)

	changed, err := manifests.Decode(made)
	require.NoError(t, err)

	before := podsOf(built(t, "single-node"))
	after := podsOf(changed)
	require.Len(t, after, len(before), "want: the overlay keeps the number of pods")

	for id, was := range before {
		now := after[id]
		driver := slices.IndexFunc(was.Containers, func(c core.Container) bool { return c.Name == "touchstone" })
		pool := slices.IndexFunc(was.Volumes, func(v core.Volume) bool { return v.Name == "pool" })

		require.Equal(t, "registry.example.com/touchstone:v0.1.0", now.Containers[driver].Image)
		require.Contains(t, now.Containers[driver].Env, core.EnvVar{Name: "TOUCHSTONE_OVERCOMMIT", Value: "2"})
		require.Equal(t, "/data/touchstone", now.Volumes[pool].HostPath.Path)

		// What has to follow does, and the rest stays.
		was.Containers[driver].Image = now.Containers[driver].Image
		was.Containers[driver].Env = append(was.Containers[driver].Env, core.EnvVar{Name: "TOUCHSTONE_OVERCOMMIT", Value: "2"})
		was.Volumes[pool].HostPath.Path = now.Volumes[pool].HostPath.Path
		require.ElementsMatch(t, was.Containers[driver].Env, now.Containers[driver].Env)
		was.Containers[driver].Env = now.Containers[driver].Env
		require.Equal(t, was, now)
	}
}

func podsOf(objects map[string]manifests.Object) map[string]core.PodSpec {
	pods := map[string]core.PodSpec{}
	for _, each := range workloads(objects) {
		pods[each.id] = each.pod
	}

	return pods
}
