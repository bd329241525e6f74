package driver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// atOnce has CreateSnapshot answer as soon as the source can't change, and
// patient as late as possible.
func atOnce(c *driver.Config) { c.CopyGrace = time.Nanosecond }

func patient(c *driver.Config) { c.CopyGrace = time.Hour }

// brake makes a copy last as long as a test needs.
type brake struct{ served *faults.Directory }

// withBrake is a driver with a pool of its own in which copies can be held up.
func withBrake(t *testing.T, start func(testing.TB, ...harness.Option) *harness.Driver, more ...harness.Option) (*harness.Driver, brake) {
	t.Helper()

	served, there := stalling(t)

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

	return newVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, Parameters: directoryBacked(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
	}).VolumeID
}

func snapshotIDs(entries []*csi.ListSnapshotsResponse_Entry) []string {
	ids := []string{}
	for _, entry := range entries {
		ids = append(ids, entry.GetSnapshot().GetSnapshotId())
	}

	return ids
}

func TestASnapshotIsIdempotentByName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id, other := cheapVolume(t, d, "source"), cheapVolume(t, d, "other")
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, AccessibilityRequirements: topology(nodeSegment, harness.NodeID)}

	before := time.Now()
	made, err := d.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)

	snapshot := made.GetSnapshot()
	require.True(t, snapshot.GetReadyToUse(), "want: the snapshot is ready to use")
	require.Equal(t, id, snapshot.GetSourceVolumeId())
	require.EqualValues(t, 64*mib, snapshot.GetSizeBytes())
	require.Empty(t, snapshot.GetGroupSnapshotId())
	require.WithinRange(t, snapshot.GetCreationTime().AsTime(), before, time.Now())
	require.Len(t, snapshot.GetAccessibleTopology(), 1)

	check := func(change func(*csi.CreateSnapshotRequest), want codes.Code, words ...string) {
		t.Helper()

		changed := proto.CloneOf(request)
		change(changed)

		again, err := d.CreateSnapshot(t.Context(), changed)
		fails(t, err, want, words...)

		if err == nil {
			require.True(t, proto.Equal(made, again), "%v\n%v", made, again)
		}
	}

	checks := func() {
		t.Helper()
		check(func(*csi.CreateSnapshotRequest) {}, codes.OK)
		check(func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"consistency": "filesystem"} }, codes.OK)
		check(func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"csi.storage.k8s.io/x": "y"} }, codes.OK)
		check(func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"deletionPolicy": "Retain"} }, codes.OK)
		check(func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = other }, codes.AlreadyExists, snapshot.GetSnapshotId(), id, other)
		check(func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = "none" }, codes.AlreadyExists)
		check(func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"consistency": "none"} }, codes.AlreadyExists, "none")
		check(func(r *csi.CreateSnapshotRequest) { r.AccessibilityRequirements = topology("rack", "7") }, codes.AlreadyExists)
	}

	checks()
	deleteVolume(t, d, id)
	checks()
	d.Restart(t)
	checks()

	found, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	require.NoError(t, err)
	require.True(t, proto.Equal(snapshot, found.GetSnapshot()), "got %v, want %v", found.GetSnapshot(), snapshot)

	// The name is free again once it is gone.
	deleteSnapshot(t, d, snapshot.GetSnapshotId())
	deleteSnapshot(t, d, snapshot.GetSnapshotId())
	requireRooms(t, d, map[string]int{"snapshots": 0})

	_, err = d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	fails(t, err, codes.NotFound, snapshot.GetSnapshotId())

	anew, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: other})
	require.NoError(t, err)
	require.NotEqual(t, snapshot.GetSnapshotId(), anew.GetSnapshot().GetSnapshotId())
}

func TestBadSnapshotRequests(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id := cheapVolume(t, d, "source")
	before := everything(t, d)

	for name, test := range map[string]struct {
		request *csi.CreateSnapshotRequest
		want    codes.Code
		word    string
	}{
		"no name":             {&csi.CreateSnapshotRequest{SourceVolumeId: id}, codes.InvalidArgument, "name"},
		"a banned character":  {&csi.CreateSnapshotRequest{SourceVolumeId: id, Name: "a\x01"}, codes.InvalidArgument, "control"},
		"no source":           {&csi.CreateSnapshotRequest{Name: "s"}, codes.InvalidArgument, "source_volume_id"},
		"a hostile source":    {&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "../" + id}, codes.InvalidArgument, "source_volume_id"},
		"an unknown source":   {&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "none"}, codes.NotFound, "none"},
		"an unknown key":      {withParameter(id, "color", "blue"), codes.InvalidArgument, "consistency"},
		"an unknown value":    {withParameter(id, "consistency", "best"), codes.InvalidArgument, "filesystem or none"},
		"an unreachable rack": {&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, AccessibilityRequirements: topology("rack", "7")}, codes.ResourceExhausted, "topology"},
	} {
		_, err := d.CreateSnapshot(t.Context(), test.request)
		require.Equal(t, test.want, status.Code(err), "%s: %v", name, err)
		require.ErrorContains(t, err, test.word, name)
	}

	for name, call := range map[string]func(id string) error{
		"delete": func(id string) error {
			_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})

			return err
		},
		"get": func(id string) error {
			_, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})

			return err
		},
	} {
		for _, id := range []string{"", "..", "../../etc/passwd", "a/b", "a\n"} {
			require.Equal(t, codes.InvalidArgument, status.Code(call(id)), "%s %q", name, id)
		}
	}

	// An id that nobody has is no error here, whatever it looks like.
	deleteSnapshot(t, d, "none")
	deleteSnapshot(t, d, id)

	for _, id := range []string{"none", "../../etc/passwd", id} {
		listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: id})
		require.NoError(t, err)
		require.Empty(t, listed.GetEntries())

		listed, err = d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: id})
		require.NoError(t, err)
		require.Empty(t, listed.GetEntries())
	}

	require.Equal(t, before, everything(t, d))

	// Where topology is not advertised, nobody may ask for it, nor is told of it.
	d.Restart(t, without("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"))

	_, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: id, AccessibilityRequirements: topology(nodeSegment, harness.NodeID),
	})
	fails(t, err, codes.InvalidArgument, "accessibility_requirements")

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	require.NoError(t, err)
	require.Empty(t, made.GetSnapshot().GetAccessibleTopology())
}

func withParameter(id, key, value string) *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, Parameters: map[string]string{key: value}}
}

func TestSnapshotsAreListed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	sources := []string{cheapVolume(t, d, "a"), cheapVolume(t, d, "b")}
	of := map[string][]string{}

	var all []string

	for i := range 7 {
		source := sources[i%2]

		made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: strconv.Itoa(i), SourceVolumeId: source})
		require.NoError(t, err)

		all = append(all, made.GetSnapshot().GetSnapshotId())
		of[source] = append(of[source], made.GetSnapshot().GetSnapshotId())
	}

	list := func(request *csi.ListSnapshotsRequest) ([]string, string) {
		t.Helper()

		page, err := d.ListSnapshots(t.Context(), request)
		require.NoError(t, err)

		return snapshotIDs(page.GetEntries()), page.GetNextToken()
	}

	ids, token := list(&csi.ListSnapshotsRequest{})
	require.Equal(t, all, ids)
	require.Empty(t, token)

	for _, source := range sources {
		ids, token = list(&csi.ListSnapshotsRequest{SourceVolumeId: source, MaxEntries: 2})
		require.Equal(t, of[source][:2], ids)

		ids, _ = list(&csi.ListSnapshotsRequest{SourceVolumeId: source, StartingToken: token})
		require.Equal(t, of[source][2:], ids)
	}

	ids, token = list(&csi.ListSnapshotsRequest{SnapshotId: all[3], MaxEntries: 1})
	require.Equal(t, all[3:4], ids)
	require.Empty(t, token)

	ids, _ = list(&csi.ListSnapshotsRequest{SnapshotId: all[3], SourceVolumeId: sources[0]})
	require.Empty(t, ids, "it is of the other volume")

	// A token is good though what it stands for is gone.
	ids, token = list(&csi.ListSnapshotsRequest{MaxEntries: 3})
	require.Equal(t, all[:3], ids)
	deleteSnapshot(t, d, all[2])

	ids, token = list(&csi.ListSnapshotsRequest{MaxEntries: 4, StartingToken: token})
	require.Equal(t, all[3:], ids)
	require.Empty(t, token)

	_, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "7"})
	fails(t, err, codes.Aborted, "starting_token")

	_, err = d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	fails(t, err, codes.InvalidArgument, "max_entries")

	// What is listed of a volume is not forgotten with a restart, or with the
	// volume.
	deleteVolume(t, d, sources[0])
	d.Restart(t)

	left := slices.DeleteFunc(slices.Clone(of[sources[0]]), func(id string) bool { return id == all[2] })
	ids, _ = list(&csi.ListSnapshotsRequest{SourceVolumeId: sources[0]})
	require.Equal(t, left, ids)
}

// TestASnapshotPromisesWhatItHolds has snapshots count for the pool's capacity.
func TestASnapshotPromisesWhatItHolds(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	// The pool's filesystem has metadata of its own.
	const slack = mib

	d := harness.Start(t, reflinking(t))
	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, CapacityRange: required(gib),
	})
	bringUp(t, d, claim)
	overwrite(t, claim.TargetPath, 0, random(t, 16*mib))
	takeDown(t, d, claim)

	held := func() int64 {
		entry, err := os.ReadDir(filepath.Join(d.Pool(), "snapshots"))
		require.NoError(t, err)

		sum := int64(0)
		for _, each := range entry {
			sum += allocated(t, filepath.Join(d.Pool(), "snapshots", each.Name()))
		}

		return sum
	}
	before := available(t, d)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: claim.VolumeID})
	require.NoError(t, err)
	require.GreaterOrEqual(t, held(), int64(16*mib))
	require.InDelta(t, before-held(), available(t, d), slack)

	d.Restart(t)
	require.InDelta(t, before-held(), available(t, d), slack)

	deleteSnapshot(t, d, made.GetSnapshot().GetSnapshotId())
	require.InDelta(t, before, available(t, d), slack)
}

// TestOneNameForTwoSources has two callers race for a name.
func TestOneNameForTwoSources(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const rounds = 16

	d := harness.Start(t)
	sources := []string{cheapVolume(t, d, "a"), cheapVolume(t, d, "b")}

	for round := range rounds {
		var (
			callers sync.WaitGroup
			good    atomic.Int32
		)

		for _, source := range sources {
			callers.Go(func() {
				_, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: strconv.Itoa(round), SourceVolumeId: source})

				switch status.Code(err) {
				case codes.OK:
					good.Add(1)
				case codes.AlreadyExists:
				default:
					t.Error(err)
				}
			})
		}

		callers.Wait()
		require.EqualValues(t, 1, good.Load())
	}

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), rounds)
	requireRooms(t, d, map[string]int{"snapshots": rounds, "scratch": 0})
}

// TestManySnapshotsAtOnce makes and deletes snapshots of few volumes from many
// sides.
func TestManySnapshotsAtOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, reflinking(t))

	var (
		sources []string
		callers sync.WaitGroup
	)

	for i := range 3 {
		sources = append(sources, newVolume(t, d, &csi.CreateVolumeRequest{
			Name: strconv.Itoa(i), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
		}).VolumeID)
	}

	for caller := range 8 {
		callers.Go(func() {
			for i := range 8 {
				made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
					Name: fmt.Sprintf("%d of %d", i, caller), SourceVolumeId: sources[(i+caller)%len(sources)],
				})
				if err == nil && i%2 == 0 {
					_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
				}

				if err != nil {
					t.Error(err)
				}
			}
		})
	}

	callers.Wait()

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 32)
	requireRooms(t, d, map[string]int{"snapshots": 32, "scratch": 0, "images": 3})
}

// TestASlowSnapshotIsNotReadyAtFirst has the CO ask until it is.
func TestASlowSnapshotIsNotReadyAtFirst(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d, brake := withBrake(t, harness.Start, atOnce)
	id, other := oneBlock(t, d, "source"), cheapVolume(t, d, "other")
	want := sumOf(t, imageOf(d, id))
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

	restore := &csi.CreateVolumeRequest{
		Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: ofSnapshot(snapshotID),
	}
	_, err := d.CreateVolume(t.Context(), restore)
	fails(t, err, codes.Aborted, snapshotID, "ready_to_use")

	_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: other})
	fails(t, err, codes.AlreadyExists, id)

	// Whoever wants to write to the source waits, so it is a snapshot of the
	// moment that the CO was told.
	claim := d.Claim(t, id)
	claim.Capability = csiclient.BlockCapability(writer)

	short, cancel := context.WithTimeout(t.Context(), impatient)
	defer cancel()

	fails(t, d.Attach(short, claim), codes.DeadlineExceeded)
	brake.release(t)
	require.NoError(t, d.Attach(t.Context(), claim))

	for _, each := range seen() {
		require.True(t, each.GetReadyToUse(), "want: the snapshot is ready to use")
		require.True(t, proto.Equal(made.GetCreationTime(), each.GetCreationTime()),
			"got %v, want %v", each.GetCreationTime(), made.GetCreationTime())
	}

	require.NoError(t, d.Detach(t.Context(), claim))

	restored, err := d.CreateVolume(t.Context(), restore)
	require.NoError(t, err)
	require.Equal(t, want, sumOf(t, imageOf(d, restored.GetVolume().GetVolumeId())))
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

		short, cancel := context.WithTimeout(t.Context(), impatient)
		_, err := d.DeleteSnapshot(short, removal)

		cancel()
		fails(t, err, codes.DeadlineExceeded)

		_, err = d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: made.GetSnapshotId()})
		found = status.Code(err)
	}

	brake.release(t)
	deleteSnapshot(t, d, made.GetSnapshotId())
	requireRooms(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	// Its operation may be about to end, and is not joined any more then.
	var (
		anew *csi.CreateSnapshotResponse
		err  error
	)

	require.Eventually(t, func() bool {
		anew, err = d.CreateSnapshotAndWait(t.Context(), request)

		return status.Code(err) != codes.Aborted
	}, time.Minute, time.Millisecond)
	require.NoError(t, err)
	require.NotEqual(t, made.GetSnapshotId(), anew.GetSnapshot().GetSnapshotId())
}

// TestASlowSnapshotOutlivesTheDriver restarts, and kills, the driver while it
// copies what the CO knows of already.
func TestASlowSnapshotOutlivesTheDriver(t *testing.T) {
	namespace.NeedRoot(t)

	for by, end := range map[string]func(*harness.Driver){
		"SIGTERM": func(d *harness.Driver) { d.Restart(t) },
		"SIGKILL": func(d *harness.Driver) { d.Kill(t) },
	} {
		t.Run(by, func(t *testing.T) {
			d, brake := withBrake(t, harness.StartProcess, atOnce)
			id := inPieces(t, d, "source", many/8)
			want := sumOf(t, imageOf(d, id))
			request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
			made := brake.heldUp(t, d, request)

			brake.release(t)
			end(d)

			anew, err := d.CreateSnapshotAndWait(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, made.GetSnapshotId(), anew.GetSnapshot().GetSnapshotId())
			require.Equal(t, made.GetCreationTime().AsTime(), anew.GetSnapshot().GetCreationTime().AsTime(), "its source was still")
			require.Equal(t, want, sumOf(t, filepath.Join(d.Pool(), "snapshots", anew.GetSnapshot().GetSnapshotId()+".img")))
			requireRooms(t, d, map[string]int{"snapshots": 1, "scratch": 0})
		})
	}
}

// TestAKilledSnapshotIsForgotten kills the driver before the CO knows of the
// snapshot: nothing is left of it.
func TestAKilledSnapshotIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)

	served, there := stalling(t)
	spaceOfItsOwn(t, served)

	d := harness.StartProcess(t, patient, there)
	id := oneBlock(t, d, "source")
	copying := stall(t, served, "images", id)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}
	client, left := d.Client, make(chan error, 1)

	go func() {
		_, err := client.CreateSnapshot(context.WithoutCancel(t.Context()), request)
		left <- err
	}()

	copying()
	requireRooms(t, d, map[string]int{"scratch": 1})

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "it is not cut for anybody yet")

	d.Kill(t, func() { served.Release(t) })
	require.Error(t, await.Receive(t, left, "CreateSnapshot to return"), "CreateSnapshot whose driver was killed")
	requireRooms(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	before := available(t, d)
	made, err := d.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")
	require.Less(t, available(t, d), before)
}

// TestImpatientSnapshot retries with a deadline that is too short: there is one
// snapshot in the end.
func TestImpatientSnapshot(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, patient)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: sluggish(t, d, "source")}

	var made *csi.CreateSnapshotResponse

	require.NoError(t, retry(t, func(ctx context.Context) (err error) {
		made, err = d.CreateSnapshot(ctx, request)

		return err
	}))
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{made.GetSnapshot().GetSnapshotId()}, snapshotIDs(listed.GetEntries()))
	requireRooms(t, d, map[string]int{"snapshots": 1, "scratch": 0})
}

// TestWhatIsUsedElsewhere snapshots a volume that is attached to a node that
// this process knows nothing of.
func TestWhatIsUsedElsewhere(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for sort, options := range copyPools() {
		t.Run(sort, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options(t), twoNodes)
			claim := newVolume(t, d, mountedAs("ext4", 64*mib))
			claim.NodeID = secondNode
			require.NoError(t, d.Attach(t.Context(), claim))

			request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: claim.VolumeID}
			clone := mountedAs("ext4", 64*mib)
			clone.Name, clone.VolumeContentSource = "clone", ofVolume(claim.VolumeID)

			_, err := d.CreateSnapshot(t.Context(), request)
			_, cloning := d.CreateVolume(t.Context(), clone)

			if sort == "reflink" {
				require.NoError(t, err)
				require.NoError(t, cloning)

				return
			}

			fails(t, err, codes.FailedPrecondition, secondNode, "consistency: none")
			fails(t, cloning, codes.FailedPrecondition, secondNode, "consistency: none")
			requireRooms(t, d, map[string]int{"snapshots": 0, "scratch": 0, "images": 1})

			rough := proto.CloneOf(clone)
			rough.Name, rough.Parameters = "rough", map[string]string{"consistency": "none"}
			_, err = d.CreateVolume(t.Context(), rough)
			require.NoError(t, err)

			request.Parameters = map[string]string{"consistency": "none"}
			_, err = d.CreateSnapshot(t.Context(), request)
			require.NoError(t, err)

			require.NoError(t, d.Detach(t.Context(), claim))

			_, err = d.CreateVolume(t.Context(), clone)
			require.NoError(t, err)

			// Whoever only reads does not disturb.
			claim.ReadOnly = true
			require.NoError(t, d.Attach(t.Context(), claim))

			_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "t", SourceVolumeId: claim.VolumeID})
			require.NoError(t, err)
		})
	}
}

// TestARefusedSnapshotLeavesItsName asks for it again at once, in the way that
// the refusal tells.
func TestARefusedSnapshotLeavesItsName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	bringUp(t, d, claim)

	free := cheapVolume(t, d, "free")

	for round := range 8 {
		request := &csi.CreateSnapshotRequest{Name: strconv.Itoa(round), SourceVolumeId: claim.VolumeID}

		_, err := d.CreateSnapshot(t.Context(), request)
		fails(t, err, codes.FailedPrecondition, "consistency: none")

		if round%2 == 0 {
			request.Parameters = map[string]string{"consistency": "none"}
		} else {
			request.SourceVolumeId = free
		}

		_, err = d.CreateSnapshot(t.Context(), request)
		require.NoError(t, err)
	}

	requireRooms(t, d, map[string]int{"snapshots": 8, "scratch": 0})
}

// TestACloneOfADirectoryInUse is made where the class says that it need not be of
// one moment; the same class makes and restores any other volume as well.
func TestACloneOfADirectoryInUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	bringUp(t, d, claim)
	writeBlock(t, claim)

	request := func(name string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: name, Parameters: directoryBacked(), VolumeContentSource: ofVolume(claim.VolumeID),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
		}
	}

	_, err := d.CreateVolume(t.Context(), request("exact"))
	fails(t, err, codes.FailedPrecondition, claim.VolumeID, "consistency: none")

	rough := request("rough")
	rough.Parameters["consistency"] = "none"
	clone := newVolume(t, d, rough)
	require.NotContains(t, clone.VolumeContext, "consistency")

	rough.Name, rough.VolumeContentSource = "fresh", nil
	newVolume(t, d, rough)

	bringUp(t, d, clone)
	requireBlock(t, clone)
}

// TestAStrangerInTheSnapshotsStays finds bytes there that the state does not
// know of.
func TestAStrangerInTheSnapshotsStays(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: cheapVolume(t, d, "source")})
	require.NoError(t, err)

	d.Stop()

	stranger := filepath.Join(d.Pool(), "snapshots", "01900000-0000-7000-8000-000000000000.img")
	writeFile(t, stranger, "somebody's")
	d.Restart(t)
	require.FileExists(t, stranger)

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{made.GetSnapshot().GetSnapshotId()}, snapshotIDs(listed.GetEntries()))
}

// diary is a workload that writes file after file, and each only once the one
// before is on the disk.
type diary struct {
	written atomic.Int64
	stop    chan struct{}
	ended   sync.WaitGroup
}

func (d *diary) entry(place string, number int64) string {
	return filepath.Join(place, fmt.Sprintf("%06d", number))
}

// keep begins to write, to each of the places what is the same.
func (d *diary) keep(t *testing.T, places ...string) {
	t.Helper()

	d.stop = make(chan struct{})
	d.ended.Go(func() {
		for number := int64(0); ; number++ {
			select {
			case <-d.stop:
				return
			default:
			}

			for _, place := range places {
				if err := durably(d.entry(place, number), fmt.Sprint("entry ", number)); err != nil {
					t.Error(err)

					return
				}
			}

			d.written.Store(number + 1)
		}
	})
	t.Cleanup(d.close)
	require.Eventually(t, func() bool { return d.written.Load() > 3 }, time.Minute, time.Millisecond)
}

func (d *diary) close() {
	if d.stop != nil {
		close(d.stop)
		d.ended.Wait()
	}

	d.stop = nil
}

func durably(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()

	if _, err := file.WriteString(text); err != nil {
		return err
	}

	return file.Sync()
}

// entries counts what is in the diary, without a gap and each whole.
func (d *diary) entries(t *testing.T, place string) int64 {
	t.Helper()

	for number := int64(0); ; number++ {
		text, err := os.ReadFile(d.entry(place, number))
		if os.IsNotExist(err) {
			return number
		}

		require.NoError(t, err)

		// The last may have been begun.
		if string(text) != fmt.Sprint("entry ", number) {
			require.NoFileExists(t, d.entry(place, number+1))

			return number
		}
	}
}

// TestSnapshotsOfWhatIsBeingWritten makes snapshots, a group and a clone of
// volumes while a workload writes to them: each has all that was on the disk when
// it was asked for, and the members of a group differ by what was being written.
func TestSnapshotsOfWhatIsBeingWritten(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, reflinking(t))

			var (
				claims   []*csiclient.Publication
				writing  diary
				ids      []string
				restores []*csiclient.Publication
				least    []int64
			)

			for i := range 2 {
				request := mountedAs(fsType, 300*mib)
				request.Name = strconv.Itoa(i)
				claim := newVolume(t, d, request)
				bringUp(t, d, claim)
				claims, ids = append(claims, claim), append(ids, claim.VolumeID)
			}

			writing.keep(t, claims[0].TargetPath, claims[1].TargetPath)

			restored := func(name string, source *csi.VolumeContentSource, written int64) {
				t.Helper()

				restores = append(restores, copyOf(t, d, mountedAs(fsType, 300*mib), name, source, nil))
				least = append(least, written)
			}

			for i := range 3 {
				written := writing.written.Load()
				made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
					Name: strconv.Itoa(i), SourceVolumeId: ids[i%2],
				})
				require.NoError(t, err)
				restored(fmt.Sprint("snapshot ", i), ofSnapshot(made.GetSnapshot().GetSnapshotId()), written)
			}

			written := writing.written.Load()
			restored("clone", ofVolume(ids[0]), written)

			written = writing.written.Load()
			group, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
			require.NoError(t, err)

			// The first is written before the second, entry by entry.
			for _, id := range ids {
				for _, member := range group.GetGroupSnapshot().GetSnapshots() {
					if member.GetSourceVolumeId() == id {
						restored("member of "+id, ofSnapshot(member.GetSnapshotId()), written)
					}
				}
			}

			writing.close()

			var found []int64

			for i, claim := range restores {
				bringUp(t, d, claim)
				found = append(found, writing.entries(t, claim.TargetPath))
				require.GreaterOrEqual(t, found[i], least[i])
				require.LessOrEqual(t, found[i], writing.written.Load()+1)
			}

			first, second := found[len(found)-2], found[len(found)-1]
			require.Contains(t, []int64{second, second + 1}, first, "what was written first is in the group, too")
		})
	}
}
