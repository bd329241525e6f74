package blockdev_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/blockdev"
	"github.com/touchstone-csi/touchstone/test/faults"
)

// TestFindBesideADeadFilesystem: a loop device whose image can't be asked any more,
// as on a server that is gone, keeps nobody from finding and attaching others.
func TestFindBesideADeadFilesystem(t *testing.T) {
	needRoot(t)

	loops := blockdev.NewLoops(blockdev.LoopsOptions{First: first})
	served := faults.Serve(t)

	lost, err := os.Create(filepath.Join(served.Path, "lost.img"))
	require.NoError(t, err)
	require.NoError(t, lost.Truncate(mebibyte))

	// To go with its last close: whoever detaches it has to ask, too.
	dead := attach(t, loops, lost, blockdev.AttachOptions{Preferred: -1, AutoClear: true})

	require.NoError(t, lost.Close())
	served.Kill(t)

	_, _, err = loops.Status(dead.Number)
	require.Error(t, err)

	image := newImage(t, mebibyte)
	device := attach(t, loops, image, none())

	found, err := loops.Find(image)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, device.Number, found[0].Number)

	// It is locked: whose device has it is to be found first.
	again := attach(t, loops, image, none())
	require.Equal(t, device.Number, again.Number)
}
