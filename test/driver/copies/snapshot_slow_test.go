package copies_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestSlowSnapshotIsNotReadyAtFirst: the CO asks until it is.
func TestSlowSnapshotIsNotReadyAtFirst(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d, brake := withBrake(t, harness.Start, atOnce)
	id, other := oneBlock(t, d, "source"), cheapVolume(t, d, "other")
	want := harness.ImageSum(t, harness.ImageOf(d, id))
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
	made := brake.heldUp(t, d, request)
	snapshotID := made.GetSnapshotId()
	seen := func() []*csi.Snapshot {
		again, err := d.CreateSnapshot(t.Context(), request)
		require.NoError(t, err)
		found, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snapshotID})
		require.NoError(t, err)
		listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: id})
		require.NoError(t, err)
		require.Equal(t, []string{snapshotID}, snapshotIDs(listed.GetEntries()))

		return []*csi.Snapshot{again.GetSnapshot(), found.GetSnapshot(), listed.GetEntries()[0].GetSnapshot()}
	}

	for _, each := range seen() {
		require.Equal(t, snapshotID, each.GetSnapshotId())
		require.False(t, each.GetReadyToUse(), "want: the snapshot is not ready to use yet")
	}

	conformance.Shows(t, "CreateSnapshot", "bytes are still copied", "ready_to_use is false")

	restore := &csi.CreateVolumeRequest{
		Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: harness.FromSnapshot(snapshotID),
	}
	_, err := d.CreateVolume(t.Context(), restore)
	harness.RequireCode(t, err, codes.Aborted, snapshotID, "ready_to_use")

	_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: other})
	harness.RequireCode(t, err, codes.AlreadyExists, id)

	// Writers of the source wait, so it is a snapshot of the
	// moment that the CO was given.
	claim := d.Claim(t, id)
	claim.Capability = csiclient.BlockCapability(harness.Writer)

	short, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
	defer cancel()

	harness.RequireCode(t, d.Attach(short, claim), codes.DeadlineExceeded)
	brake.release(t)
	require.NoError(t, d.Attach(t.Context(), claim))

	for _, each := range seen() {
		require.True(t, each.GetReadyToUse(), "want: the snapshot is ready to use")
		require.True(t, proto.Equal(made.GetCreationTime(), each.GetCreationTime()),
			"got %v, want %v", each.GetCreationTime(), made.GetCreationTime())
	}

	conformance.Shows(t, "ListSnapshots", "all bytes are copied", "ready_to_use is true")
	require.NoError(t, d.Detach(t.Context(), claim))

	restored, err := d.CreateVolume(t.Context(), restore)
	require.NoError(t, err)
	require.Equal(t, want, harness.ImageSum(t, harness.ImageOf(d, restored.GetVolume().GetVolumeId())))
	conformance.Shows(t, "CreateSnapshot", "bytes are still copied", "what is written after the response is not in it")
}

// TestASlowSnapshotIsDeleted deletes it while it is being copied: that ends the
// copying.
func TestASlowSnapshotIsDeleted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d, brake := withBrake(t, harness.Start, atOnce)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: oneBlock(t, d, "source")}
	made := brake.heldUp(t, d, request)
	removal := &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshotId()}

	// It is gone from the list before the last byte is. On a busy machine a call
	// may be too late before it has begun.
	for found, end := codes.OK, time.Now().Add(2*await.Limit); found != codes.NotFound; {
		require.WithinRange(t, time.Now(), time.Time{}, end, "GetSnapshot still returns %s while DeleteSnapshot is retried", found)

		short, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
		_, err := d.DeleteSnapshot(short, removal)

		cancel()
		harness.RequireCode(t, err, codes.DeadlineExceeded)

		_, err = d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: made.GetSnapshotId()})
		found = status.Code(err)
	}

	_, err := d.CreateSnapshot(t.Context(), request)
	harness.RequireCode(t, err, codes.Aborted, made.GetSnapshotId(), "being deleted")
	conformance.Shows(t, "CreateSnapshot", "the snapshot of its name is being deleted", "Aborted")

	brake.release(t)
	deleteSnapshot(t, d, made.GetSnapshotId())
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	recreated := snapshotAgain(t, d, request)
	require.NotEqual(t, made.GetSnapshotId(), recreated.GetSnapshot().GetSnapshotId(), "want: the deleted snapshot has another id than the new one")
}

// snapshotAgain takes a snapshot whose predecessor of the same name is being deleted:
// CreateSnapshot returns ABORTED until that is done.
func snapshotAgain(t *testing.T, d *harness.Driver, request *csi.CreateSnapshotRequest) *csi.CreateSnapshotResponse {
	t.Helper()

	for end := time.Now().Add(await.Limit); ; {
		made, err := d.CreateSnapshotAndWait(t.Context(), request)
		if status.Code(err) != codes.Aborted || time.Now().After(end) {
			require.NoError(t, err)

			return made
		}

		time.Sleep(time.Millisecond)
	}
}

// TestSlowSnapshotOutlivesTheDriver, which is restarted, and killed, while it copies what the CO
// has an id of already.
func TestSlowSnapshotOutlivesTheDriver(t *testing.T) {
	namespace.NeedRoot(t)

	for by, end := range map[string]func(*harness.Driver){
		"SIGTERM": func(d *harness.Driver) { d.Restart(t) },
		"SIGKILL": func(d *harness.Driver) { d.Kill(t) },
	} {
		t.Run(by, func(t *testing.T) {
			d, brake := withBrake(t, harness.StartProcess, atOnce)
			id := inPieces(t, d, "source", many/2)
			want := harness.ImageSum(t, harness.ImageOf(d, id))
			request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
			made := brake.heldUp(t, d, request)

			brake.release(t)
			end(d)

			recreated, err := d.CreateSnapshotAndWait(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, made.GetSnapshotId(), recreated.GetSnapshot().GetSnapshotId())
			require.Equal(t, made.GetCreationTime().AsTime(), recreated.GetSnapshot().GetCreationTime().AsTime(), "its source was still")
			require.Equal(t, want, harness.ImageSum(t, filepath.Join(d.Pool(), "snapshots", recreated.GetSnapshot().GetSnapshotId()+".img")))
			harness.RequireEntries(t, d, map[string]int{"snapshots": 1, "scratch": 0})
		})
	}
}

// TestAFailedSnapshotStaysFailed: what was acknowledged never gets the content that its
// source has later.
func TestAFailedSnapshotStaysFailed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d, brake := withBrake(t, harness.StartProcess, atOnce)
	id := oneBlock(t, d, "source")
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
	made := brake.heldUp(t, d, request)

	brake.served.Inject(t, faults.Fault{Name: filepath.Join("pool", "images", id+".img"), Ops: faults.Reads, Errno: syscall.EIO})
	require.Eventually(t, func() bool {
		_, err := d.CreateSnapshot(t.Context(), request)

		return err != nil
	}, await.Limit, time.Millisecond, "want: the snapshot fails")
	brake.release(t)

	claim := d.Claim(t, id)
	claim.Capability = csiclient.BlockCapability(harness.Writer)
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)

	for _, accident := range []func(){func() {}, func() { d.Kill(t) }} {
		accident()

		_, err := d.CreateSnapshot(t.Context(), request)
		harness.RequireCode(t, err, codes.Internal, made.GetSnapshotId(), "has failed", "delete it")

		found, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: made.GetSnapshotId()})
		require.NoError(t, err)
		require.True(t, proto.Equal(made, found.GetSnapshot()), "got %v, want %v", found.GetSnapshot(), made)
		harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})
	}

	conformance.Shows(t, "CreateSnapshot", "bytes could not be copied after the response", "Internal")
	deleteSnapshot(t, d, made.GetSnapshotId())

	recreated, err := d.CreateSnapshotAndWait(t.Context(), request)
	require.NoError(t, err)
	require.NotEqual(t, made.GetSnapshotId(), recreated.GetSnapshot().GetSnapshotId(), "want: the failed snapshot has another id than the new one")
}

// TestAKilledSnapshotIsForgotten kills the driver before the CO knows of the
// snapshot: nothing is left of it.
func TestAKilledSnapshotIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)

	served, there := stallingPool(t)
	spaceOfItsOwn(t, served)

	d := harness.StartProcess(t, patient, there)
	id := oneBlock(t, d, "source")
	// Before the copy begins: the space of a deleted copy returns some time after its name.
	before := harness.AvailableCapacity(t, d)
	copying := stall(t, served, "images", id)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
	client, left := d.Client, make(chan error, 1)

	go func() {
		_, err := client.CreateSnapshot(context.WithoutCancel(t.Context()), request)
		left <- err
	}()

	copying()
	harness.RequireEntries(t, d, map[string]int{"scratch": 1})

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "it is not taken yet")
	conformance.Shows(t, "ListSnapshots", "a snapshot is being cut", "no entry of it")
	d.Kill(t, func() { served.Release(t) })
	require.Error(t, await.Receive(t, left, "CreateSnapshot to return"), "CreateSnapshot whose driver was killed")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	made := snapshotAgain(t, d, request)
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")
	require.Less(t, harness.AvailableCapacity(t, d), before, "want: the snapshot takes space")
}

// TestSnapshotIsRetriedAfterItsDeadline, which is too short: there is one snapshot in the end.
func TestSnapshotIsRetriedAfterItsDeadline(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, patient)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: sluggish(t, d, "source")}

	var made *csi.CreateSnapshotResponse

	asked := 0

	require.NoError(t, harness.Retry(t, func(ctx context.Context) (err error) {
		asked++
		made, err = d.CreateSnapshot(ctx, request)

		return err
	}))
	require.Greater(t, asked, 1, "want: the copy takes longer than the deadline")
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{made.GetSnapshot().GetSnapshotId()}, snapshotIDs(listed.GetEntries()))
	harness.RequireEntries(t, d, map[string]int{"snapshots": 1, "scratch": 0})
}
