package loop_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func BenchmarkAttachDetach(b *testing.B) {
	needRoot(b)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstBench})
	image := newImage(b, 64*mebibyte)

	for b.Loop() {
		device, err := loops.Attach(b.Context(), image, none())
		require.NoError(b, err)
		require.NoError(b, device.Close())
		require.NoError(b, loops.Detach(b.Context(), device.Number))
	}
}

func BenchmarkStatus(b *testing.B) {
	needRoot(b)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstBench})
	device := attach(b, loops, newImage(b, 64*mebibyte), none())

	for b.Loop() {
		_, attached, err := loops.Status(device.Number)
		require.NoError(b, err)
		require.True(b, attached, "want: the device is attached")
	}
}
