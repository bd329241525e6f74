package kata_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
)

// TestPageExampleIsUpToDate: the page's example is what the driver would write, byte for byte.
func TestPageExampleIsUpToDate(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/direct-assignment.md")
	require.NoError(t, err)

	example := kata.Assignment{
		TargetPath: "/var/lib/kubelet/pods/6c1e4d2a-0f5b-4b7e-9c3d-2a1b0c9d8e7f/volumes/kubernetes.io~csi/" +
			"pvc-7d0a1c52-93b4-4f0e-8a6d-5e4f3c2b1a09/mount",
		Device: "/dev/loop1024", FSType: "ext4", Options: []string{"noatime"}, Group: "2000",
	}

	plugin, err := example.CSIPlugin()
	require.NoError(t, err)

	info, err := example.MountInfo()
	require.NoError(t, err)

	shown := regexp.MustCompile("(?s)```json\n(.*?)\n```").FindAllSubmatch(page, -1)
	require.Len(t, shown, 2, "want: the page has both files")
	require.Equal(t, string(plugin), string(shown[0][1]))
	require.Equal(t, string(info), string(shown[1][1]))

	root := t.TempDir()
	require.NoError(t, kata.NewRoot(root).Put(example))

	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, entries, 1, "want: the root has the one assignment")
	require.Contains(t, string(page), "/run/kata-containers/shared/direct-volumes/"+entries[0].Name()+"`")
}
