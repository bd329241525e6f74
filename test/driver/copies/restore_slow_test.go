package copies_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// sluggish makes a raw block volume that takes long to copy where blocks can't be
// shared: it consists of very many pieces.
func sluggish(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, many)
}

// spaceOfItsOwn excludes others' changes of the space in the pool that is served.
func spaceOfItsOwn(t *testing.T, served *faults.Directory) {
	t.Helper()

	place := filepath.Join(served.Backing, "pool")
	require.NoError(t, os.Mkdir(place, 0o700))
	require.NoError(t, unix.Mount(testpool.Plain(t, harness.GiB), place, "", unix.MS_BIND, ""))
	// Its server ends later.
	t.Cleanup(func() { require.NoError(t, unix.Unmount(place, unix.MNT_DETACH)) })
}

// TestASourceIsNotDeletedDuringItsCopy deletes a snapshot, and a volume, while it is
// copied.
func TestASourceIsNotDeletedDuringItsCopy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stallingPool(t)
	d := harness.Start(t, there)
	id := oneBlock(t, d, "source")
	want := harness.ImageSum(t, harness.ImageOf(d, id))

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	require.NoError(t, err)

	request := &csi.CreateVolumeRequest{
		Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
		VolumeContentSource: harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()),
	}
	answers := make(chan *csi.CreateVolumeResponse, 1)

	create := func(copying func()) {
		go func() {
			answer, err := d.CreateVolume(context.WithoutCancel(t.Context()), request)
			if err != nil {
				t.Errorf("%s: %v", request.GetName(), err)
			}

			answers <- answer
		}()
		copying()
	}

	create(stall(t, served, "snapshots", made.GetSnapshot().GetSnapshotId()))

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
	harness.RequireCode(t, err, codes.Aborted, made.GetSnapshot().GetSnapshotId())
	served.Release(t)

	restored := await.Receive(t, answers, "CreateVolume from a snapshot to return")
	require.Equal(t, want, harness.ImageSum(t, harness.ImageOf(d, restored.GetVolume().GetVolumeId())))
	deleteSnapshot(t, d, made.GetSnapshot().GetSnapshotId())

	// A volume waits for its turn to go.
	request.Name, request.VolumeContentSource = "clone", harness.FromVolume(id)
	create(stall(t, served, "images", id))

	short, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
	defer cancel()

	_, err = d.DeleteVolume(short, &csi.DeleteVolumeRequest{VolumeId: id})
	harness.RequireCode(t, err, codes.DeadlineExceeded)
	require.FileExists(t, harness.ImageOf(d, id))
	served.Release(t)
	harness.DeleteVolume(t, d, id)

	cloned := await.Receive(t, answers, "CreateVolume from a volume to return")
	require.Equal(t, want, harness.ImageSum(t, harness.ImageOf(d, cloned.GetVolume().GetVolumeId())))
}

// TestRestoreIsRetriedAfterItsDeadline: a restore and a clone take longer than their deadlines:
// there is one volume in the end, and it is whole.
func TestRestoreIsRetriedAfterItsDeadline(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id := sluggish(t, d, "source")
	want := harness.ImageSum(t, harness.ImageOf(d, id))

	snapshot := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}

	var made *csi.CreateSnapshotResponse

	require.NoError(t, harness.Retry(t, func(ctx context.Context) (err error) {
		made, err = d.CreateSnapshot(ctx, snapshot)

		return err
	}))

	made, err := d.CreateSnapshotAndWait(t.Context(), snapshot)
	require.NoError(t, err)

	for name, source := range map[string]*csi.VolumeContentSource{
		"restore": harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()), "clone": harness.FromVolume(id),
	} {
		var answer *csi.CreateVolumeResponse

		asked := 0

		require.NoError(t, harness.Retry(t, func(ctx context.Context) (err error) {
			asked++
			answer, err = d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: source,
			})

			return err
		}))
		require.Greater(t, asked, 1, "want: the copy takes longer than the deadline")
		require.Equal(t, want, harness.ImageSum(t, harness.ImageOf(d, answer.GetVolume().GetVolumeId())), name)
	}

	require.Len(t, harness.ListAll(t, d), 3, "want: the source and one copy of each kind are listed")
}

// TestARestartLeavesNothingOfARestore, and the retry makes all of it.
func TestARestartLeavesNothingOfARestore(t *testing.T) {
	namespace.NeedRoot(t)

	for _, by := range []string{"restore", "clone"} {
		t.Run(by, func(t *testing.T) {
			served, there := stallingPool(t)
			d := harness.StartProcess(t, there)
			id := oneBlock(t, d, "source")
			want := harness.ImageSum(t, harness.ImageOf(d, id))
			source, room, name := harness.FromVolume(id), "images", id

			if by == "restore" {
				made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
				require.NoError(t, err)

				room, name = "snapshots", made.GetSnapshot().GetSnapshotId()
				source = harness.FromSnapshot(name)
			}

			copying := stall(t, served, room, name)
			request := &csi.CreateVolumeRequest{
				Name: by, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: source,
			}
			left := make(chan error, 1)
			client := d.Client

			go func() {
				_, err := client.CreateVolume(context.WithoutCancel(t.Context()), request)
				left <- err
			}()

			copying()
			harness.RequireEntries(t, d, map[string]int{"scratch": 1})
			d.Kill(t, func() { served.Release(t) })
			require.Error(t, await.Receive(t, left, "CreateVolume to return"), "CreateVolume whose driver was killed")
			require.Len(t, harness.ListAll(t, d), 1, "want: the source alone is listed")
			harness.RequireEntries(t, d, map[string]int{"images": 1, "scratch": 0})

			made, err := d.CreateVolume(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, want, harness.ImageSum(t, harness.ImageOf(d, made.GetVolume().GetVolumeId())))
		})
	}
}

// TestCloneDuringAnExpansion: the source is expanded after the clone was asked for
// and before it is taken. The clone's image has the size that the clone is said to have.
func TestCloneDuringAnExpansion(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stallingPool(t)
	d := harness.Start(t, there, func(c *driver.Config) { c.Controller.CoalesceWindow = 0 })
	id := oneBlock(t, d, "source")

	var calls sync.WaitGroup

	// The expansion stops in ftruncate, before the volume's new size is recorded.
	served.Inject(t, faults.Fault{Name: filepath.Join("pool", "images", id+".img"), Ops: faults.Writes, Hang: true})
	calls.Go(func() {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * harness.MiB},
		})
		assert.NoError(t, err)
	})
	require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond,
		"waited for the expansion to grow the image")

	var clone *csi.CreateVolumeResponse

	calls.Go(func() {
		request := &csi.CreateVolumeRequest{
			Name: "clone", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: harness.FromVolume(id),
		}

		made, err := d.CreateVolume(t.Context(), request)
		if status.Code(err) == codes.Aborted {
			made, err = d.CreateVolume(t.Context(), request)
		}

		assert.NoError(t, err)

		clone = made
	})
	// The record of the clone has the source's old size.
	require.Eventually(t, func() bool {
		journal, err := os.ReadFile(filepath.Join(d.Config.StateDir, "state.jsonl"))

		return err == nil && bytes.Contains(journal, []byte(`"name":"clone"`))
	}, time.Minute, time.Millisecond, "waited for the record of the clone")

	served.Release(t)
	await.Return(t, calls.Wait, "all calls to return")
	require.False(t, t.Failed(), "want: no goroutine of the test has failed")

	info, err := os.Stat(harness.ImageOf(d, clone.GetVolume().GetVolumeId()))
	require.NoError(t, err)
	require.Equal(t, clone.GetVolume().GetCapacityBytes(), info.Size(), "bytes of the clone's image, as its capacity says")
}
