package copies_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// atOnce has CreateSnapshot answer as soon as the source can't change, and
// as late as possible.
func atOnce(c *driver.Config) { c.Controller.CopyGrace = time.Nanosecond }

func patient(c *driver.Config) { c.Controller.CopyGrace = time.Hour }

// brake makes a copy last as long as a test needs.
type brake struct{ served *faults.Directory }

// withBrake is a driver with a pool of its own in which copies can be held up.
func withBrake(t *testing.T, start func(testing.TB, ...harness.Option) *harness.Driver, more ...harness.Option) (*harness.Driver, brake) {
	t.Helper()

	served, there := stallingPool(t)

	return start(t, append(more, there)...), brake{served: served}
}

func (b brake) release(t *testing.T) {
	t.Helper()
	b.served.Release(t)
}

// heldUp asks for a snapshot, and returns what the driver says of it while it
// can't be copied any further.
func (b brake) heldUp(t *testing.T, d *harness.Driver, request *csi.CreateSnapshotRequest) *csi.Snapshot {
	t.Helper()

	copying := stall(t, b.served, "images", request.GetSourceVolumeId())
	answers := make(chan *csi.CreateSnapshotResponse, 1)

	go func() {
		made, err := d.CreateSnapshot(context.WithoutCancel(t.Context()), request)
		if err != nil {
			t.Error(err)
		}

		answers <- made
	}()

	copying()

	made := await.Receive(t, answers, "CreateSnapshot to return").GetSnapshot()
	require.False(t, made.GetReadyToUse(), "want: the snapshot is not ready to use yet")

	return made
}

// cheapVolume makes a volume that takes next to nothing to copy.
func cheapVolume(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, Parameters: harness.DirectoryBacked(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
	}).VolumeID
}

func snapshotIDs(entries []*csi.ListSnapshotsResponse_Entry) []string {
	ids := []string{}
	for _, entry := range entries {
		ids = append(ids, entry.GetSnapshot().GetSnapshotId())
	}

	return ids
}
