package harness

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
)

// CapacityOf is the capacity that the controller reports for a volume.
func CapacityOf(t *testing.T, d *Driver, id string) int64 {
	t.Helper()

	found, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	require.NoError(t, err)

	return found.GetVolume().GetCapacityBytes()
}

// AssertNoError is require.NoError for goroutines other than the test's.
func AssertNoError(t *testing.T, err error) bool {
	t.Helper()

	if err != nil {
		t.Error(err)
	}

	return err == nil
}

// ImpatientDeadline is the deadline of a CO that does not wait for a mkfs.
const ImpatientDeadline = 5 * time.Millisecond

// Retry calls with a short deadline until the answer is another than that it
// was too short.
func Retry(t *testing.T, call func(context.Context) error) error {
	t.Helper()

	for end := time.Now().Add(2 * await.Limit); ; {
		ctx, cancel := context.WithTimeout(t.Context(), ImpatientDeadline)
		err := call(ctx)

		cancel()

		if status.Code(err) != codes.DeadlineExceeded {
			return err
		}

		require.WithinRange(t, time.Now(), time.Time{}, end, "the call is retried and has no answer but: %v", err)
	}
}

// Modify changes mutable parameters of a volume.
func Modify(ctx context.Context, d *Driver, id string, parameters map[string]string) error {
	_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})

	return err
}

// VolumeStats returns the error of NodeGetVolumeStats for a path.
func VolumeStats(t *testing.T, d *Driver, claim *csiclient.Publication, path string) error {
	t.Helper()

	_, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: path})

	return err
}

// AvailableCapacity is GetCapacity's answer for the default pool.
func AvailableCapacity(t *testing.T, d *Driver) int64 {
	t.Helper()

	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)

	return capacity.GetAvailableCapacity()
}

// TakeSnapshot takes a snapshot that is ready to use, and returns its id.
func TakeSnapshot(t *testing.T, d *Driver, volumeID, name string) string {
	t.Helper()

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: volumeID, Name: name})
	require.NoError(t, err)

	return made.GetSnapshot().GetSnapshotId()
}
