package queue_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// firstLoop is the first loop number of these tests, outside the ranges of other packages' tests.
const firstLoop = 788_000

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	goleak.VerifyTestMain(m)
}

// newLoop attaches a sparse image and returns the name of its device.
func newLoop(t *testing.T) string {
	t.Helper()

	if os.Getuid() != 0 {
		t.Skip("attaching a loop device needs root")
	}

	image, err := os.Create(filepath.Join(t.TempDir(), "volume.img"))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(1<<20))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{BlockSize: 4096, PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()

		require.NoError(t, device.Close())
		require.NoError(t, loops.Detach(ctx, device.Number))
	})

	return filepath.Base(device.Path)
}
