package copies_test

import (
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

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestASnapshotIsIdempotentByName(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id, other := cheapVolume(t, d, "source"), cheapVolume(t, d, "other")
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, AccessibilityRequirements: harness.Topology(harness.NodeSegment, harness.NodeID)}

	before := time.Now()
	made, err := d.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)

	snapshot := made.GetSnapshot()
	require.True(t, snapshot.GetReadyToUse(), "want: the snapshot is ready to use")
	require.Equal(t, id, snapshot.GetSourceVolumeId())
	require.EqualValues(t, 64*harness.MiB, snapshot.GetSizeBytes(), "want: the snapshot has the size of its volume")
	require.Empty(t, snapshot.GetGroupSnapshotId(), "want: the snapshot is of no group")
	require.WithinRange(t, snapshot.GetCreationTime().AsTime(), before, time.Now())
	require.Len(t, snapshot.GetAccessibleTopology(), 1, "want: the snapshot is accessible from the node")

	check := func(change func(*csi.CreateSnapshotRequest), want codes.Code, words ...string) {
		t.Helper()

		changed := proto.CloneOf(request)
		change(changed)

		again, err := d.CreateSnapshot(t.Context(), changed)
		harness.RequireCode(t, err, want, words...)

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
		check(func(r *csi.CreateSnapshotRequest) { r.AccessibilityRequirements = harness.Topology("rack", "7") }, codes.AlreadyExists)
	}

	checks()
	harness.DeleteVolume(t, d, id)
	checks()
	d.Restart(t)
	checks()

	found, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	require.NoError(t, err)
	require.True(t, proto.Equal(snapshot, found.GetSnapshot()), "got %v, want %v", found.GetSnapshot(), snapshot)

	// The name is free again once it is gone.
	deleteSnapshot(t, d, snapshot.GetSnapshotId())
	deleteSnapshot(t, d, snapshot.GetSnapshotId())
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0})

	_, err = d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	harness.RequireCode(t, err, codes.NotFound, snapshot.GetSnapshotId())

	recreated, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: other})
	require.NoError(t, err)
	require.NotEqual(t, snapshot.GetSnapshotId(), recreated.GetSnapshot().GetSnapshotId(), "want: the new snapshot has an id of its own")
}

func TestBadSnapshotRequestsChangeNothing(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id := cheapVolume(t, d, "source")
	before := harness.Everything(t, d)

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
		"an unreachable rack": {&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, AccessibilityRequirements: harness.Topology("rack", "7")}, codes.ResourceExhausted, "topology"},
	} {
		_, err := d.CreateSnapshot(t.Context(), test.request)
		rpccode.Require(t, err, test.want, "%s", name)
		errtext.Require(t, err, test.word, name)
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
			rpccode.Require(t, call(id), codes.InvalidArgument, "%s %q", name, id)
		}
	}

	// An unknown id is no error here, whatever it looks like.
	deleteSnapshot(t, d, "none")
	deleteSnapshot(t, d, id)

	for _, id := range []string{"none", "../../etc/passwd", id} {
		listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: id})
		require.NoError(t, err)
		require.Empty(t, listed.GetEntries(), "want: no snapshot has such an id")

		listed, err = d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: id})
		require.NoError(t, err)
		require.Empty(t, listed.GetEntries(), "want: no snapshot is of such a volume")
	}

	require.Equal(t, before, harness.Everything(t, d))

	// Where topology is not advertised, it cannot be requested and is not reported.
	d.Restart(t, harness.WithoutCapabilities("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"))

	_, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: id, AccessibilityRequirements: harness.Topology(harness.NodeSegment, harness.NodeID),
	})
	harness.RequireCode(t, err, codes.InvalidArgument, "accessibility_requirements")

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	require.NoError(t, err)
	require.Empty(t, made.GetSnapshot().GetAccessibleTopology(), "want: the snapshot has no topology without the capability")
}

func withParameter(id, key, value string) *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id, Parameters: map[string]string{key: value}}
}

func TestSnapshotsAreListed(t *testing.T) {
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
	require.Empty(t, token, "want: the whole list has no next page")

	for _, source := range sources {
		ids, token = list(&csi.ListSnapshotsRequest{SourceVolumeId: source, MaxEntries: 2})
		require.Equal(t, of[source][:2], ids)

		ids, _ = list(&csi.ListSnapshotsRequest{SourceVolumeId: source, StartingToken: token})
		require.Equal(t, of[source][2:], ids)
	}

	ids, token = list(&csi.ListSnapshotsRequest{SnapshotId: all[3], MaxEntries: 1})
	require.Equal(t, all[3:4], ids)
	require.Empty(t, token, "want: one snapshot has no next page")

	ids, _ = list(&csi.ListSnapshotsRequest{SnapshotId: all[3], SourceVolumeId: sources[0]})
	require.Empty(t, ids, "it is of the other volume")

	// A token is good though what it stands for is gone.
	ids, token = list(&csi.ListSnapshotsRequest{MaxEntries: 3})
	require.Equal(t, all[:3], ids)
	deleteSnapshot(t, d, all[2])

	ids, token = list(&csi.ListSnapshotsRequest{MaxEntries: 4, StartingToken: token})
	require.Equal(t, all[3:], ids)
	require.Empty(t, token, "want: the last page has no next one")

	_, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "7"})
	harness.RequireCode(t, err, codes.Aborted, "starting_token")

	_, err = d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	harness.RequireCode(t, err, codes.InvalidArgument, "max_entries")

	// What is listed of a volume is not forgotten with a restart, or with the
	// volume.
	harness.DeleteVolume(t, d, sources[0])
	d.Restart(t)

	left := slices.DeleteFunc(slices.Clone(of[sources[0]]), func(id string) bool { return id == all[2] })
	ids, _ = list(&csi.ListSnapshotsRequest{SourceVolumeId: sources[0]})
	require.Equal(t, left, ids)
}

// TestSnapshotsCountForTheCapacity of the pool.
func TestSnapshotsCountForTheCapacity(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	// The pool's filesystem has metadata of its own.
	const slack = harness.MiB

	d := harness.Start(t, reflinking(t))
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(harness.GiB),
	})
	harness.BringUp(t, d, claim)
	harness.Overwrite(t, claim.TargetPath, 0, harness.Random(t, 16*harness.MiB))
	harness.TakeDown(t, d, claim)

	held := func() int64 {
		entry, err := os.ReadDir(filepath.Join(d.Pool(), "snapshots"))
		require.NoError(t, err)

		sum := int64(0)
		for _, each := range entry {
			sum += harness.AllocatedBytes(t, filepath.Join(d.Pool(), "snapshots", each.Name()))
		}

		return sum
	}
	before := harness.AvailableCapacity(t, d)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: claim.VolumeID})
	require.NoError(t, err)
	require.GreaterOrEqual(t, held(), int64(16*harness.MiB), "want: the snapshot holds the data of the volume")
	require.InDelta(t, before-held(), harness.AvailableCapacity(t, d), slack, "want: the snapshot takes what it holds")

	d.Restart(t)
	require.InDelta(t, before-held(), harness.AvailableCapacity(t, d), slack, "want: the snapshot takes what it holds after a restart")

	deleteSnapshot(t, d, made.GetSnapshot().GetSnapshotId())
	require.InDelta(t, before, harness.AvailableCapacity(t, d), slack, "want: the deleted snapshot takes nothing")
}

// TestOneNameForTwoSources has two callers race for a name.
func TestOneNameForTwoSources(t *testing.T) {
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

		await.Return(t, callers.Wait, "each CreateSnapshot to return")
		require.EqualValues(t, 1, good.Load(), "want: one source gets the name")
	}

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), rounds, "want: each round makes one snapshot")
	harness.RequireEntries(t, d, map[string]int{"snapshots": rounds, "scratch": 0})
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
		sources = append(sources, harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: strconv.Itoa(i), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
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
	require.Len(t, listed.GetEntries(), 32, "want: all snapshots are listed")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 32, "scratch": 0, "images": 3})
}
