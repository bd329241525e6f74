package manifests_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/manifests"
)

// olderKustomize are modules of their own, because one program links one version
// of a module: kustomize 5.0.1, older than the 5.0.4 of kubectl 1.30, and the 5.5.0
// of kubectl 1.32.
var olderKustomize = []string{"kustomize-5.0", "kustomize-5.5"}

// TestOlderKustomizeBuilds the same objects from every directory as the newest.
func TestOlderKustomizeBuilds(t *testing.T) {
	t.Parallel()

	for _, older := range olderKustomize {
		for _, name := range append([]string{"base", "prerequisites"}, overlays...) {
			t.Run(older+"/"+name, func(t *testing.T) {
				t.Parallel()

				objects, err := manifests.Decode(builtBy(t, older, name))
				require.NoError(t, err, "decode what %s builds of %s", older, name)
				require.Equal(t, built(t, name), objects, "%s builds other objects of %s than the newest", older, name)
			})
		}
	}
}

func builtBy(t *testing.T, module, name string) string {
	t.Helper()

	directory, err := filepath.Abs(kustomizeDir(name))
	require.NoError(t, err)

	build := child.Go(t, module, "tool", "kustomize", "build", directory)

	var problems strings.Builder

	build.Stderr = &problems

	text, err := build.Output()
	require.NoError(t, err, "%s: kustomize build %s: %s", module, directory, problems.String())

	return string(text)
}
