package publishing_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// TestABusyVolumeNamesItsHolder in the error of NodeUnpublishVolume, which succeeds once the
// process has ended.
func TestABusyVolumeNamesItsHolder(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		held, err := os.Open(claim.TargetPath)
		require.NoError(t, err)

		process := exec.Command("sleep", "inf")
		process.Stdin = held
		require.NoError(t, child.Start(process))
		require.NoError(t, held.Close())

		t.Cleanup(func() {
			_ = process.Process.Kill()
			_ = process.Wait()
		})

		errtext.Require(t, d.Unpublish(t.Context(), claim), fmt.Sprintf("process %d (sleep) has it open", process.Process.Pid))

		require.NoError(t, process.Process.Kill())
		require.Error(t, process.Wait(), "want: the killed process ends with an error")
		require.NoError(t, d.Unpublish(t.Context(), claim))
	})
}
