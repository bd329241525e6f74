package loop_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestWithoutDevicesTheCauseIsReported: no number has a device, and none can be made: the attempts
// with all numbers would take long, and ErrNoNumber would hide the cause.
func TestWithoutDevicesTheCauseIsReported(t *testing.T) {
	t.Parallel()

	image := newImage(t, mebibyte)

	// No directory can be made in /proc.
	options := loop.LoopsOptions{Dev: t.TempDir(), Sys: t.TempDir(), DeviceDir: "/proc/nodes"}
	_, err := loop.NewLoops(options).Attach(t.Context(), image, none())
	require.NotErrorIs(t, err, loop.ErrNoNumber)
	require.ErrorIs(t, err, os.ErrNotExist)
	errtext.Require(t, err, "open loop-control")

	if os.Geteuid() != 0 {
		_, err := loop.NewLoops(loop.LoopsOptions{First: first}).Attach(t.Context(), image, none())
		require.NotErrorIs(t, err, loop.ErrNoNumber)
		require.ErrorIs(t, err, os.ErrPermission)
	}
}
