package pools_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestForeignDataIsNotProvisioned: with an overcommit ratio of 1 all that is
// provisioned can be written, also beside other data in the pool's filesystem.
func TestForeignDataIsNotProvisioned(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, filesystem := range map[string]func(testing.TB, int64) string{
		"xfs": testpool.Reflink, "ext4": testpool.Plain,
	} {
		for _, backing := range []string{"image", "directory"} {
			t.Run(name+" "+backing, func(t *testing.T) {
				t.Parallel()

				const (
					volume = 160 * harness.MiB
					// Both filesystems need more of their own as data comes, and reserve some.
					slack = 24 * harness.MiB
				)

				directory := filesystem(t, 1024*harness.MiB)
				d := harness.Start(t, func(c *driver.Config) { c.Pools = map[string]string{"default": directory} })
				empty := harness.AvailableCapacity(t, d)

				allocate(t, filepath.Join(filepath.Dir(directory), "foreign"), 400*harness.MiB)
				require.InDelta(t, empty-400*harness.MiB, harness.AvailableCapacity(t, d), slack, "beside foreign data")

				// A volume's own data is not foreign.
				first := fileOfNew(t, d, "first", backing, volume)
				allocate(t, first, volume)
				require.InDelta(t, empty-400*harness.MiB-volume, harness.AvailableCapacity(t, d), slack, "with a volume that is full")

				// Nor is a snapshot's, with or without shared blocks.
				_, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: harness.ListAll(t, d)[0]})
				require.NoError(t, err)
				require.InDelta(t, empty-400*harness.MiB-2*volume, harness.AvailableCapacity(t, d), slack, "with a snapshot of all of it")

				_, err = d.CreateVolume(t.Context(), ofKind("too much", backing, harness.AvailableCapacity(t, d)+harness.MiB))
				harness.RequireCode(t, err, codes.ResourceExhausted, "default", "--overcommit")

				rest := (harness.AvailableCapacity(t, d) - slack) / harness.MiB * harness.MiB
				second := fileOfNew(t, d, "second", backing, rest)

				// Foreign data that is written later counts at once.
				allocate(t, filepath.Join(filepath.Dir(directory), "more"), 2*slack)
				_, err = d.CreateVolume(t.Context(), ofKind("third", backing, harness.MiB))
				harness.RequireCode(t, err, codes.ResourceExhausted, "default", "--overcommit")

				require.NoError(t, os.Remove(filepath.Join(filepath.Dir(directory), "more")))
				allocate(t, second, rest)
			})
		}
	}
}

func ofKind(name, backing string, size int64) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: harness.RequiredBytes(size), Parameters: map[string]string{"backing": backing},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	}
	if backing == "directory" {
		request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")}
	}

	return request
}

// fileOfNew makes a volume and returns its file in the pool.
func fileOfNew(t *testing.T, d *harness.Driver, name, backing string, size int64) string {
	t.Helper()

	claim := harness.NewVolume(t, d, ofKind(name, backing, size))
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })

	if backing == "directory" {
		return filepath.Join(d.Pool(), "directories", claim.VolumeID, "data")
	}

	return harness.ImageOf(d, claim.VolumeID)
}

// allocate writes so many bytes to a file, durably.
func allocate(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)

	defer file.Close()

	// Beyond the end of a file that grows XFS allocates more, and gives it back later.
	require.NoError(t, eintr.Retry(func() error { return unix.Fallocate(int(file.Fd()), 0, 0, size) }))

	for data := bytes.Repeat([]byte("touchst."), harness.MiB/8); size > 0; size -= harness.MiB {
		_, err := file.Write(data)
		require.NoError(t, err, "write %s", path)
	}

	require.NoError(t, file.Sync(), "sync %s", path)
}
