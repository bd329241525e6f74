package pools_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestPoolBecomesFullDuringCopies has copies begin for which there is too little
// space: they fail as a whole, and whatever they had taken is free again.
func TestPoolBecomesFullDuringCopies(t *testing.T) {
	namespace.NeedRoot(t)

	const size = 40 * harness.MiB

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": harness.DirectoryBacked()} {
		t.Run(name, func(t *testing.T) {
			// The provisioning limit is not what runs out.
			d := harness.SmallPool(t, 3*size-8*harness.MiB, func(c *driver.Config) { c.Overcommit = 100 })
			capability := csiclient.BlockCapability(harness.Writer)

			if parameters != nil {
				capability = csiclient.MountCapability(harness.Writer, "")
			}

			first := fullVolume(t, d, "first", size, capability, parameters)
			second := fullVolume(t, d, "second", size, capability, parameters)
			before := freeBytes(t, d)
			require.Less(t, before, int64(size), "want: the second volume does not fit a third time")

			snapshot := &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: first}
			_, err := d.CreateSnapshot(conformance.Exercise(t.Context(), conformance.Where("a pool without space for a copy",
				func(r *csi.CreateSnapshotRequest) bool { return r.GetSourceVolumeId() == first })), snapshot)
			harness.RequireCode(t, err, codes.ResourceExhausted, "default", d.Pool())
			requireNoTrace(t, d, before)

			clone := &csi.CreateVolumeRequest{
				Name: "clone", Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
				VolumeContentSource: harness.FromVolume(first),
			}
			_, err = d.CreateVolume(t.Context(), clone)
			harness.RequireCode(t, err, codes.ResourceExhausted, "default", d.Pool())
			requireNoTrace(t, d, before)

			_, err = d.CreateVolumeGroupSnapshot(conformance.Exercise(t.Context(), conformance.Where("a pool without space for a copy",
				func(r *csi.CreateVolumeGroupSnapshotRequest) bool {
					return slices.Contains(r.GetSourceVolumeIds(), first)
				},
			)), &csi.CreateVolumeGroupSnapshotRequest{
				Name: "group", SourceVolumeIds: []string{first, second},
			})
			harness.RequireCode(t, err, codes.ResourceExhausted, "default", d.Pool())
			requireNoTrace(t, d, before)

			// With space again the very same calls succeed, one after the other.
			harness.DeleteVolume(t, d, second)

			made, err := d.CreateSnapshot(t.Context(), snapshot)
			require.NoError(t, err)
			require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")

			before = freeBytes(t, d)
			restore := &csi.CreateVolumeRequest{
				Name: "restore", Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
				VolumeContentSource: harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()),
			}
			_, err = d.CreateVolume(t.Context(), restore)
			harness.RequireCode(t, err, codes.ResourceExhausted, "default", d.Pool())
			require.InDelta(t, before, freeBytes(t, d), harness.MiB, "want: the failed copy takes no space")
			require.Len(t, harness.ListAll(t, d), 1, "want: the failed copy is not listed")

			_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
			require.NoError(t, err)

			_, err = d.CreateVolume(t.Context(), clone)
			require.NoError(t, err)
		})
	}
}

// fullVolume makes a volume and fills it through a publication.
func fullVolume(t *testing.T, d *harness.Driver, name string, bytes int64, capability *csi.VolumeCapability,
	parameters map[string]string,
) string {
	t.Helper()

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: harness.RequiredBytes(bytes),
	})
	harness.BringUp(t, d, claim)

	path := claim.TargetPath
	if capability.GetMount() != nil {
		path = filepath.Join(path, "data")
	}

	data := make([]byte, bytes)
	_, _ = rand.Read(data)

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = file.Write(data)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
	harness.TakeDown(t, d, claim)

	return claim.VolumeID
}

func freeBytes(t *testing.T, d *harness.Driver) int64 {
	t.Helper()

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(d.Pool(), &stat))

	return int64(stat.Bavail) * stat.Bsize
}

// requireNoTrace looks for what failed copies may have left: the two volumes
// are all there is.
func requireNoTrace(t *testing.T, d *harness.Driver, free int64) {
	t.Helper()

	require.Len(t, harness.ListAll(t, d), 2, "want: both volumes alone are listed")

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "want: no snapshot is listed")

	for _, room := range []string{"scratch", "snapshots"} {
		left, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Empty(t, left, room)
	}

	require.InDelta(t, free, freeBytes(t, d), harness.MiB, "want: the failed copy takes no space")
}
