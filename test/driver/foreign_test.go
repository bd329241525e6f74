package driver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestForeignDataIsNotProvisioned: with an overcommit ratio of 1 all that is
// provisioned can be written, also beside other data in the pool's filesystem.
func TestForeignDataIsNotProvisioned(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, filesystem := range map[string]func(testing.TB, int64) string{
		"xfs": harness.ReflinkPool, "ext4": harness.PlainPool,
	} {
		for _, backing := range []string{"image", "directory"} {
			t.Run(name+" "+backing, func(t *testing.T) {
				t.Parallel()

				const (
					volume = 160 * mib
					// Both filesystems need more of their own as data comes, and reserve some.
					slack = 24 * mib
				)

				directory := filesystem(t, 1024*mib)
				d := harness.Start(t, func(c *driver.Config) { c.Pools = map[string]string{"default": directory} })
				empty := available(t, d)

				allocate(t, filepath.Join(filepath.Dir(directory), "foreign"), 400*mib)
				require.InDelta(t, empty-400*mib, available(t, d), slack, "beside foreign data")

				// A volume's own data is not foreign.
				first := fileOfNew(t, d, "first", backing, volume)
				allocate(t, first, volume)
				require.InDelta(t, empty-400*mib-volume, available(t, d), slack, "with a volume that is full")

				// Nor is a snapshot's, with or without shared blocks.
				_, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: listAll(t, d)[0]})
				require.NoError(t, err)
				require.InDelta(t, empty-400*mib-2*volume, available(t, d), slack, "with a snapshot of all of it")

				_, err = d.CreateVolume(t.Context(), ofKind("too much", backing, available(t, d)+mib))
				fails(t, err, codes.ResourceExhausted, "default", "--overcommit")

				rest := (available(t, d) - slack) / mib * mib
				second := fileOfNew(t, d, "second", backing, rest)

				// Foreign data that is written later counts at once.
				allocate(t, filepath.Join(filepath.Dir(directory), "more"), 2*slack)
				_, err = d.CreateVolume(t.Context(), ofKind("third", backing, mib))
				fails(t, err, codes.ResourceExhausted, "default", "--overcommit")

				require.NoError(t, os.Remove(filepath.Join(filepath.Dir(directory), "more")))
				allocate(t, second, rest)
			})
		}
	}
}

func ofKind(name, backing string, size int64) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: required(size), Parameters: map[string]string{"backing": backing},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	}
	if backing == "directory" {
		request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}
	}

	return request
}

// fileOfNew makes a volume and returns its file in the pool.
func fileOfNew(t *testing.T, d *harness.Driver, name, backing string, size int64) string {
	t.Helper()

	claim := newVolume(t, d, ofKind(name, backing, size))
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() { takeDown(t, d, claim) })

	if backing == "directory" {
		return filepath.Join(d.Pool(), "directories", claim.VolumeID, "data")
	}

	return imageOf(d, claim.VolumeID)
}

// allocate writes so many bytes to a file, durably.
func allocate(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)

	defer file.Close()

	for data := bytes.Repeat([]byte("touchst."), mib/8); size > 0; size -= mib {
		_, err := file.Write(data)
		require.NoError(t, err, "write %s", path)
	}

	require.NoError(t, file.Sync(), "sync %s", path)
}
