package copies_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func membersOf(group *csi.VolumeGroupSnapshot) []string {
	ids := make([]string, 0, len(group.GetSnapshots()))
	for _, member := range group.GetSnapshots() {
		ids = append(ids, member.GetSnapshotId())
	}

	return ids
}

func deleteGroup(ctx context.Context, d *harness.Driver, id string, members []string) error {
	_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})

	return err
}

func getGroup(ctx context.Context, d *harness.Driver, id string, members []string) (*csi.VolumeGroupSnapshot, error) {
	answer, err := d.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})

	return answer.GetGroupSnapshot(), err
}

// TestGroupHasAllMembers: they are volumes of all kinds that are in use, each is restored, and only
// the group as a whole is deleted.
func TestGroupHasAllMembers(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, reflinking(t))

	var ids []string

	want := map[string][sha256.Size]byte{}
	requests := map[string]*csi.CreateVolumeRequest{}
	claims := map[string]*csiclient.Publication{}

	for name, request := range copyKinds() {
		request.Name = name
		claim := harness.NewVolume(t, d, request)
		harness.BringUp(t, d, claim)

		want[claim.VolumeID] = fillPayload(t, claim)
		requests[claim.VolumeID] = request
		claims[claim.VolumeID] = claim
		ids = append(ids, claim.VolumeID)

		if name == "directory" {
			// It is copied file by file.
			harness.TakeDown(t, d, claim)
		}
	}

	// A raw block volume cannot be frozen, so the writes to it could not be in order with the others.
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids}
	_, err := d.CreateVolumeGroupSnapshot(t.Context(), request)
	harness.RequireCode(t, err, codes.FailedPrecondition, "consistency")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	for _, claim := range claims {
		if claim.Capability.GetBlock() != nil {
			harness.TakeDown(t, d, claim)
		}
	}

	before := time.Now()
	made, err := d.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)

	group := made.GetGroupSnapshot()
	require.True(t, group.GetReadyToUse(), "want: the snapshot is ready to use")
	require.WithinRange(t, group.GetCreationTime().AsTime(), before, time.Now())
	require.Len(t, group.GetSnapshots(), len(ids), "want: the group has a snapshot of each volume")

	for _, claim := range claims {
		if claim.Capability.GetBlock() == nil && requests[claim.VolumeID].GetParameters() == nil {
			fillPayload(t, claim)
		}

		harness.TakeDown(t, d, claim)
	}

	for _, member := range group.GetSnapshots() {
		require.True(t, member.GetReadyToUse(), "want: the snapshot is ready to use")
		require.Equal(t, group.GetGroupSnapshotId(), member.GetGroupSnapshotId())
		require.WithinRange(t, member.GetCreationTime().AsTime(), before, time.Now())

		found, err := d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: member.GetSnapshotId()})
		require.NoError(t, err)
		require.True(t, proto.Equal(member, found.GetSnapshot()), "got %v, want %v", found.GetSnapshot(), member)

		_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: member.GetSnapshotId()})
		harness.RequireCode(t, err, codes.InvalidArgument, group.GetGroupSnapshotId(), "DeleteVolumeGroupSnapshot")

		source := member.GetSourceVolumeId()
		harness.DeleteVolume(t, d, source)

		copied := copyOf(t, d, requests[source], "copy of "+source, harness.FromSnapshot(member.GetSnapshotId()), nil)
		harness.BringUp(t, d, copied)
		require.Equal(t, want[source], payload(t, copied), requests[source].GetName())
		harness.TakeDown(t, d, copied)
	}

	members := membersOf(group)
	slices.Reverse(members)

	d.Restart(t)

	found, err := getGroup(t.Context(), d, group.GetGroupSnapshotId(), members)
	require.NoError(t, err)
	require.True(t, proto.Equal(group, found), "%v\n%v", group, found)

	harness.RequireCode(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), members[1:]), codes.InvalidArgument, "snapshot_ids")
	require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), members))
	require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), members))
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	_, err = getGroup(t.Context(), d, group.GetGroupSnapshotId(), members)
	harness.RequireCode(t, err, codes.NotFound, group.GetGroupSnapshotId())

	// A removed member is missing in every call.
	deleteSnapshot(t, d, members[0])
}

func TestAGroupIsIdempotentByName(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	a, b, c := cheapVolume(t, d, "a"), cheapVolume(t, d, "b"), cheapVolume(t, d, "c")
	create := func(name string, parameters map[string]string, ids ...string) (*csi.VolumeGroupSnapshot, error) {
		made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: name, SourceVolumeIds: ids, Parameters: parameters,
		})

		return made.GetGroupSnapshot(), err
	}

	group, err := create("g", nil, a, b)
	require.NoError(t, err)

	check := func() {
		t.Helper()

		for _, ids := range [][]string{{a, b}, {b, a}} {
			again, err := create("g", nil, ids...)
			require.NoError(t, err)
			require.True(t, proto.Equal(group, again), "got %v, want %v", again, group)
		}

		again, err := create("g", map[string]string{"deletionPolicy": "Delete"}, a, b)
		require.NoError(t, err)
		require.True(t, proto.Equal(group, again), "got %v, want %v", again, group)

		for _, ids := range [][]string{{a}, {a, c}, {a, b, c}, {"none"}} {
			_, err := create("g", nil, ids...)
			harness.RequireCode(t, err, codes.AlreadyExists, group.GetGroupSnapshotId())
		}

		_, err = create("g", map[string]string{"consistency": "none"}, a, b)
		harness.RequireCode(t, err, codes.AlreadyExists, "consistency")
	}

	check()
	harness.DeleteVolume(t, d, a)
	check()
	d.Restart(t)
	check()

	// Snapshots of one name are no members of it.
	_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "g", SourceVolumeId: c})
	require.NoError(t, err)
	require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)))

	again, err := create("g", nil, b, c)
	require.NoError(t, err)
	require.NotEqual(t, group.GetGroupSnapshotId(), again.GetGroupSnapshotId(), "want: the new group has an id of its own")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 3})
}

func TestBadGroupRequestsChangeNothing(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id := cheapVolume(t, d, "source")

	made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{id}})
	require.NoError(t, err)

	group := made.GetGroupSnapshot()
	before := harness.Everything(t, d)

	for name, test := range map[string]struct {
		request *csi.CreateVolumeGroupSnapshotRequest
		want    codes.Code
		word    string
	}{
		"no name":           {&csi.CreateVolumeGroupSnapshotRequest{SourceVolumeIds: []string{id}}, codes.InvalidArgument, "name"},
		"no sources":        {&csi.CreateVolumeGroupSnapshotRequest{Name: "h"}, codes.InvalidArgument, "source_volume_ids"},
		"one twice":         {&csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{id, id}}, codes.InvalidArgument, "twice"},
		"an empty source":   {&csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{id, ""}}, codes.InvalidArgument, "missing"},
		"a hostile source":  {&csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{"../" + id}}, codes.InvalidArgument, "separator"},
		"an unknown source": {&csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{id, "none"}}, codes.NotFound, "none"},
		"an unknown key": {&csi.CreateVolumeGroupSnapshotRequest{
			Name: "h", SourceVolumeIds: []string{id}, Parameters: map[string]string{"color": "blue"},
		}, codes.InvalidArgument, "consistency"},
	} {
		_, err := d.CreateVolumeGroupSnapshot(t.Context(), test.request)
		rpccode.Require(t, err, test.want, "%s", name)
		errtext.Require(t, err, test.word, name)
	}

	for _, bad := range []string{"", "..", "a/b"} {
		harness.RequireCode(t, deleteGroup(t.Context(), d, bad, membersOf(group)), codes.InvalidArgument, "group_snapshot_id")

		_, err := getGroup(t.Context(), d, bad, membersOf(group))
		harness.RequireCode(t, err, codes.InvalidArgument, "group_snapshot_id")
	}

	for _, members := range [][]string{nil, {id}, {membersOf(group)[0], id}} {
		harness.RequireCode(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), members), codes.InvalidArgument, "snapshot_ids")

		_, err := getGroup(t.Context(), d, group.GetGroupSnapshotId(), members)
		harness.RequireCode(t, err, codes.InvalidArgument, "snapshot_ids")
	}

	require.NoError(t, deleteGroup(t.Context(), d, "none", nil))

	_, err = getGroup(t.Context(), d, "none", nil)
	harness.RequireCode(t, err, codes.NotFound, "none")
	require.Equal(t, before, harness.Everything(t, d))
}

// TestAGroupIsAllOrNothing has one of the members fail, in each way there is.
func TestAGroupIsAllOrNothing(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.PoolAt("default", testpool.Plain(t, harness.GiB)))
	good := cheapVolume(t, d, "good")
	bad := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "bad", Parameters: harness.DirectoryBacked(), VolumeCapabilities: []*csi.VolumeCapability{
		csiclient.MountCapability(harness.Writer, ""),
	}})
	harness.BringUp(t, d, bad)

	create := func() error {
		_, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "g", SourceVolumeIds: []string{good, bad.VolumeID},
		})

		return err
	}
	nothing := func() {
		t.Helper()
		harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

		listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		require.NoError(t, err)
		require.Empty(t, listed.GetEntries(), "want: no snapshot of the failed group is listed")
	}

	before := harness.AvailableCapacity(t, d)

	harness.RequireCode(t, create(), codes.FailedPrecondition, bad.VolumeID, "in use")
	nothing()
	harness.TakeDown(t, d, bad)

	// Its bytes are gone.
	place, away := filepath.Join(d.Pool(), "directories", bad.VolumeID), filepath.Join(d.Pool(), "away")
	require.NoError(t, os.Rename(place, away))
	harness.RequireCode(t, create(), codes.NotFound, bad.VolumeID)
	nothing()
	require.NoError(t, os.Rename(away, place))

	d.Restart(t)
	nothing()
	require.InDelta(t, before, harness.AvailableCapacity(t, d), harness.MiB, "want: the failed group takes no space")
	require.NoError(t, create())
}

// TestAKilledGroupIsForgotten kills the driver between the first and the last
// member.
func TestAKilledGroupIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)

	served, there := stallingPool(t)
	d := harness.StartProcess(t, there)
	ids := []string{oneBlock(t, d, "a"), oneBlock(t, d, "b")}
	copying := stall(t, served, "images", slices.Max(ids)) // members are taken in this order
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids}
	client, left := d.Client, make(chan error, 1)

	go func() {
		_, err := client.CreateVolumeGroupSnapshot(context.WithoutCancel(t.Context()), request)
		left <- err
	}()

	copying()
	harness.RequireEntries(t, d, map[string]int{"scratch": 2})

	_, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids[:1]})
	harness.RequireCode(t, err, codes.Aborted)
	d.Kill(t, func() { served.Release(t) })
	require.Error(t, await.Receive(t, left, "CreateVolumeGroupSnapshot to return"), "CreateVolumeGroupSnapshot whose driver was killed")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "want: no snapshot of the killed group is listed")

	var made *csi.CreateVolumeGroupSnapshotResponse

	require.NoError(t, harness.Retry(t, func(ctx context.Context) (err error) {
		made, err = d.CreateVolumeGroupSnapshot(ctx, request)

		return err
	}))
	require.Len(t, made.GetGroupSnapshot().GetSnapshots(), 2, "want: the retry makes both snapshots")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 2, "scratch": 0})
}

// TestGroupBeingReadIsKept: it is deleted while one member is restored.
func TestGroupBeingReadIsKept(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stallingPool(t)
	d := harness.Start(t, there)
	ids := []string{cheapVolume(t, d, "a"), oneBlock(t, d, "b")}

	made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
	require.NoError(t, err)

	group := made.GetGroupSnapshot()
	slow := group.GetSnapshots()[slices.IndexFunc(group.GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSourceVolumeId() == ids[1] })]
	copying := stall(t, served, "snapshots", slow.GetSnapshotId())
	restored := make(chan error, 1)

	go func() {
		_, err := d.CreateVolume(context.WithoutCancel(t.Context()), &csi.CreateVolumeRequest{
			Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
			VolumeContentSource: harness.FromSnapshot(slow.GetSnapshotId()),
		})
		restored <- err
	}()

	copying()
	harness.RequireCode(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)), codes.Aborted, slow.GetSnapshotId())
	conformance.Shows(t, "DeleteVolumeGroupSnapshot", "a member is being read", "Aborted")

	_, err = getGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group))
	require.NoError(t, err)
	served.Release(t)
	require.NoError(t, await.Receive(t, restored, "CreateVolume from the snapshot to return"))
	require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)))
}

// TestGroupsThatShareVolumes makes groups of the same volumes from many sides:
// no process waits for ever.
func TestGroupsThatShareVolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, reflinking(t), func(c *driver.Config) { c.Overcommit = 4 })

	var (
		ids     []string
		callers sync.WaitGroup
	)

	for i := range 4 {
		ids = append(ids, harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: strconv.Itoa(i), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
		}).VolumeID)
	}

	for caller := range 8 {
		callers.Go(func() {
			own := slices.Concat(ids[caller%4:], ids[:caller%4])[:3]

			made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
				Name: fmt.Sprint("group ", caller), SourceVolumeIds: own,
			})
			if err != nil {
				t.Error(err)

				return
			}

			_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: fmt.Sprint("clone ", caller), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
				VolumeContentSource: harness.FromVolume(own[0]),
			})
			if err != nil {
				t.Error(err)
			}

			group := made.GetGroupSnapshot()
			if err := deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)); err != nil {
				t.Error(err)
			}
		})
	}

	callers.Wait()
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0, "images": 12})
}

// TestGroupThatFailsAtItsLastMember leaves none of the members before it.
func TestGroupThatFailsAtItsLastMember(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stallingPool(t)
	d := harness.Start(t, there)
	ids := []string{oneBlock(t, d, "a"), oneBlock(t, d, "b")}
	copying := stall(t, served, "images", slices.Max(ids)) // members are taken in this order
	failed := make(chan error, 1)

	go func() {
		_, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
		failed <- err
	}()

	copying()

	// Both are being copied. The first one becomes a snapshot, then the other fails.
	being, err := os.ReadDir(filepath.Join(d.Pool(), "scratch"))
	require.NoError(t, err)
	require.Len(t, being, 2, "images in the scratch directory")
	served.Inject(t, faults.Fault{
		Name: filepath.Join("pool", "scratch", being[1].Name()), Ops: faults.Syncs, Errno: unix.EIO,
	})

	select {
	case err := <-failed:
		require.Error(t, err, "a group of which a member could not be synced")
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for CreateVolumeGroupSnapshot to fail")
	}

	served.Release(t)
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "snapshots of a group that failed")
	conformance.Shows(t, "CreateVolumeGroupSnapshot", "a member fails after others were copied", "an error and no snapshot")

	_, err = d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
	require.NoError(t, err, "create the group again")
}
