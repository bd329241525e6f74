package copies_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// inPieces makes a raw block volume that consists of so many pieces.
func inPieces(t *testing.T, d *harness.Driver, name string, count int64) string {
	t.Helper()

	const piece = 4096

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(2 * piece * count),
	})

	image, err := os.OpenFile(harness.ImageOf(d, claim.VolumeID), os.O_WRONLY, 0)
	require.NoError(t, err)

	data := harness.Random(t, piece)

	for at := range count {
		_, err := image.WriteAt(data, 2*piece*at)
		require.NoError(t, err)
	}

	require.NoError(t, image.Sync())
	require.NoError(t, image.Close())

	return claim.VolumeID
}

// stallingPool keeps the driver's pool where readers of a file can be made to wait, so
// that a copy lasts as long as a test needs. No blocks are shared there.
func stallingPool(t *testing.T) (*faults.Directory, harness.Option) {
	t.Helper()

	served := faults.Serve(t)

	return served, harness.PoolAt("default", filepath.Join(served.Path, "pool"))
}

// stall makes each copy of the image wait from now on; copying returns once
// one does.
func stall(t *testing.T, served *faults.Directory, room, id string) (copying func()) {
	t.Helper()
	served.Inject(t, faults.Fault{Name: filepath.Join("pool", room, id+".img"), Ops: faults.Reads, Hang: true})

	return func() {
		t.Helper()
		require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond, "want: the operation hangs in the pool")
	}
}

// oneBlock makes a raw block volume that has a block to copy.
func oneBlock(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, 1)
}
