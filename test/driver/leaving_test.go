package driver_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestWhatIsLeavingIsNotSick unstages volumes whose devices somebody has open, so
// that it takes more than one call: what the CO has asked for is no condition.
func TestWhatIsLeavingIsNotSick(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, kind := range []string{"ext4", "block"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			heard := &logged{}
			d := harness.Start(t, relists, func(c *driver.Config) {
				c.Log = slog.New(slog.NewTextHandler(heard, &slog.HandlerOptions{Level: slog.LevelInfo}))
			})
			claim := newVolume(t, d, observedKinds()[kind])
			attachAndStage(t, d, claim)

			user, err := os.Open(deviceOf(t, d, claim).Path)
			require.NoError(t, err)
			fails(t, d.Unstage(t.Context(), claim), codes.DeadlineExceeded)
			require.Empty(t, reasonsOf(t, d, claim.VolumeID))

			require.NoError(t, user.Close())
			require.NoError(t, d.Unstage(t.Context(), claim))
			require.NotContains(t, heard.String(), "a condition has appeared")

			// What is wanted again has to be there again.
			require.NoError(t, d.Stage(t.Context(), claim))

			if kind == "ext4" {
				unmount(t, claim.StagingPath)
				awaitReasons(t, d, claim, health.VolumeUnmounted)
			}
		})
	}
}
