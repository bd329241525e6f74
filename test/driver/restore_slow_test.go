package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// sluggish makes a raw block volume that takes long to copy where blocks can't be
// shared: it consists of very many pieces.
func sluggish(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, many)
}

// inPieces makes a raw block volume that consists of so many pieces.
func inPieces(t *testing.T, d *harness.Driver, name string, count int64) string {
	t.Helper()

	const piece = 4096

	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, CapacityRange: required(2 * piece * count),
	})

	image, err := os.OpenFile(imageOf(d, claim.VolumeID), os.O_WRONLY, 0)
	require.NoError(t, err)

	data := random(t, piece)

	for at := range count {
		_, err := image.WriteAt(data, 2*piece*at)
		require.NoError(t, err)
	}

	require.NoError(t, image.Sync())
	require.NoError(t, image.Close())

	return claim.VolumeID
}

// stalling keeps the driver's pool where readers of a file can be made to wait, so
// that a copy lasts as long as a test needs. No blocks are shared there.
func stalling(t *testing.T) (*faults.Directory, harness.Option) {
	t.Helper()

	served := faults.Serve(t)

	return served, poolAt("default", filepath.Join(served.Path, "pool"))
}

// spaceOfItsOwn excludes others' changes of the space in the pool that is served.
func spaceOfItsOwn(t *testing.T, served *faults.Directory) {
	t.Helper()

	place := filepath.Join(served.Backing, "pool")
	require.NoError(t, os.Mkdir(place, 0o700))
	require.NoError(t, unix.Mount(harness.PlainPool(t, gib), place, "", unix.MS_BIND, ""))
	// Its server ends later.
	t.Cleanup(func() { require.NoError(t, unix.Unmount(place, unix.MNT_DETACH)) })
}

// stall makes each copy of the image wait from now on; copying returns once
// one does.
func stall(t *testing.T, served *faults.Directory, room, id string) (copying func()) {
	t.Helper()
	served.Inject(t, faults.Fault{Name: filepath.Join("pool", room, id+".img"), Ops: faults.Reads, Hang: true})

	return func() {
		t.Helper()
		require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond)
	}
}

// oneBlock makes a raw block volume that has a block to copy.
func oneBlock(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, 1)
}

// TestWhatIsReadIsNotDeleted deletes a snapshot, and a volume, while it is
// copied.
func TestWhatIsReadIsNotDeleted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stalling(t)
	d := harness.Start(t, there)
	id := oneBlock(t, d, "source")
	want := sumOf(t, imageOf(d, id))

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	require.NoError(t, err)

	request := &csi.CreateVolumeRequest{
		Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
		VolumeContentSource: ofSnapshot(made.GetSnapshot().GetSnapshotId()),
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
	fails(t, err, codes.Aborted, made.GetSnapshot().GetSnapshotId())
	served.Release(t)

	restored := await.Receive(t, answers, "CreateVolume from a snapshot to return")
	require.Equal(t, want, sumOf(t, imageOf(d, restored.GetVolume().GetVolumeId())))
	deleteSnapshot(t, d, made.GetSnapshot().GetSnapshotId())

	// A volume waits for its turn to go.
	request.Name, request.VolumeContentSource = "clone", ofVolume(id)
	create(stall(t, served, "images", id))

	short, cancel := context.WithTimeout(t.Context(), impatient)
	defer cancel()

	_, err = d.DeleteVolume(short, &csi.DeleteVolumeRequest{VolumeId: id})
	fails(t, err, codes.DeadlineExceeded)
	require.FileExists(t, imageOf(d, id))
	served.Release(t)
	deleteVolume(t, d, id)

	cloned := await.Receive(t, answers, "CreateVolume from a volume to return")
	require.Equal(t, want, sumOf(t, imageOf(d, cloned.GetVolume().GetVolumeId())))
}

// TestImpatientRestore retries a restore and a clone that take longer than their
// deadlines: there is one volume in the end, and it is whole.
func TestImpatientRestore(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id := sluggish(t, d, "source")
	want := sumOf(t, imageOf(d, id))

	snapshot := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}

	var made *csi.CreateSnapshotResponse

	require.NoError(t, retry(t, func(ctx context.Context) (err error) {
		made, err = d.CreateSnapshot(ctx, snapshot)

		return err
	}))

	made, err := d.CreateSnapshotAndWait(t.Context(), snapshot)
	require.NoError(t, err)

	for name, source := range map[string]*csi.VolumeContentSource{
		"restore": ofSnapshot(made.GetSnapshot().GetSnapshotId()), "clone": ofVolume(id),
	} {
		var answer *csi.CreateVolumeResponse

		require.NoError(t, retry(t, func(ctx context.Context) (err error) {
			answer, err = d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: source,
			})

			return err
		}))
		require.Equal(t, want, sumOf(t, imageOf(d, answer.GetVolume().GetVolumeId())), name)
	}

	require.Len(t, listAll(t, d), 3)
}

// TestARestartInTheMiddleOfARestore leaves nothing of it, and the retry makes
// all of it.
func TestARestartInTheMiddleOfARestore(t *testing.T) {
	namespace.NeedRoot(t)

	for _, by := range []string{"restore", "clone"} {
		t.Run(by, func(t *testing.T) {
			served, there := stalling(t)
			d := harness.StartProcess(t, there)
			id := oneBlock(t, d, "source")
			want := sumOf(t, imageOf(d, id))
			source, room, name := ofVolume(id), "images", id

			if by == "restore" {
				made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
				require.NoError(t, err)

				room, name = "snapshots", made.GetSnapshot().GetSnapshotId()
				source = ofSnapshot(name)
			}

			copying := stall(t, served, room, name)
			request := &csi.CreateVolumeRequest{
				Name: by, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: source,
			}
			left := make(chan error, 1)
			client := d.Client

			go func() {
				_, err := client.CreateVolume(context.WithoutCancel(t.Context()), request)
				left <- err
			}()

			copying()
			requireRooms(t, d, map[string]int{"scratch": 1})
			d.Kill(t, func() { served.Release(t) })
			require.Error(t, await.Receive(t, left, "CreateVolume to return"), "CreateVolume whose driver was killed")
			require.Len(t, listAll(t, d), 1)
			requireRooms(t, d, map[string]int{"images": 1, "scratch": 0})

			made, err := d.CreateVolume(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, want, sumOf(t, imageOf(d, made.GetVolume().GetVolumeId())))
		})
	}
}

// requireRooms counts the entries in directories of the pool.
func requireRooms(t *testing.T, d *harness.Driver, counts map[string]int) {
	t.Helper()

	for room, count := range counts {
		found, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Len(t, found, count, room)
	}
}
