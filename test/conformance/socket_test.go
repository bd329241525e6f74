package conformance_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestSocketDirectoryStaysClean: a volume is published where the driver stages by itself, with the
// socket where Kubernetes has it.
func TestSocketDirectoryStaysClean(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	var directory string

	d := harness.Start(t, func(c *driver.Config) {
		c.Disabled = []string{"STAGE_UNSTAGE_VOLUME"}
		directory = filepath.Join(c.KubeletDir, "plugins", c.DriverName)
		c.Endpoint = "unix://" + filepath.Join(directory, "csi.sock")
	})
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: harness.RequiredBytes(size)})
	require.NoError(t, d.Attach(t.Context(), claim))

	claim.StagingPath = ""
	require.NoError(t, d.Publish(t.Context(), claim))

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, entries, 1, "csi.sock alone: %v", entries)
	conformance.Shows(t, "NodePublishVolume", "STAGE_UNSTAGE_VOLUME is disabled", "csi.sock alone in its directory")
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Detach(t.Context(), claim))
}
