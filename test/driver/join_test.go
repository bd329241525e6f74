package driver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestAModeForManyDoesNotJoinOneForOne: a volume that is attached for one node is not joined,
// whatever mode the next one asks for, on another node and on the same one.
func TestAModeForManyDoesNotJoinOneForOne(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	t.Run("nodes", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, sharedPool, twoNodes)
		claim := newVolume(t, d, &csi.CreateVolumeRequest{
			Parameters:         directoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, ""), csiclient.MountCapability(nodesWrite, "")},
		})
		require.NoError(t, d.Attach(t.Context(), claim))
		t.Cleanup(func() { takeDown(t, d, claim) })

		second := *claim
		second.NodeID, second.Capability = secondNode, csiclient.MountCapability(nodesWrite, "")
		fails(t, d.Attach(t.Context(), &second), codes.FailedPrecondition, claim.NodeID)
	})

	t.Run("targets", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t)
		claim := newVolume(t, d, &csi.CreateVolumeRequest{
			Parameters:         directoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(singleWriter, ""), csiclient.MountCapability(multiWriter, "")},
		})
		bringUp(t, d, claim)

		second := another(claim, "second")
		second.Capability = csiclient.MountCapability(multiWriter, "")
		fails(t, d.Publish(t.Context(), second), codes.FailedPrecondition, claim.TargetPath)
	})
}

// TestAPageHasNoMoreThanAskedFor, and each volume its own status.
func TestAPageHasNoMoreThanAskedFor(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, twoNodes, sharedPool)
	nodes := map[string][]string{}

	for name, node := range map[string]string{"a": d.Config.NodeID, "b": secondNode, "c": "", "d": secondNode} {
		claim := newVolume(t, d, &csi.CreateVolumeRequest{Name: name, Parameters: directoryBacked()})
		nodes[claim.VolumeID] = nil

		if node != "" {
			claim.NodeID = node
			require.NoError(t, d.Attach(t.Context(), claim))

			nodes[claim.VolumeID] = []string{node}
		}
	}

	page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 3})
	require.NoError(t, err)
	require.Len(t, page.GetEntries(), 3, "entries of the first page, of which 3 were asked for")

	rest, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: page.GetNextToken()})
	require.NoError(t, err)
	require.Len(t, rest.GetEntries(), 1, "entries of the second page")

	got := map[string][]string{}
	for _, entry := range append(page.GetEntries(), rest.GetEntries()...) {
		got[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
	}

	require.Equal(t, nodes, got, "the nodes on which each volume is published")
}

// TestExpansionsTellTheNode: the node has to grow an image, and does not report a size
// that its device does not have.
func TestExpansionsTellTheNode(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": directoryBacked()} {
		claim := newVolume(t, d, &csi.CreateVolumeRequest{Name: name, Parameters: parameters})
		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: 96 * mib},
		})
		require.NoError(t, err)
		require.Equal(t, name == "image", answer.GetNodeExpansionRequired(), "node_expansion_required of the %s", name)

		if name != "image" {
			continue
		}

		bringUp(t, d, claim)

		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib},
		})
		fails(t, err, codes.OutOfRange, "ControllerExpandVolume")
	}
}

// TestAFailedCreationLeavesNothing: a volume that cannot be recorded leaves no image.
func TestAFailedCreationLeavesNothing(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})
	t.Cleanup(func() { served.Release(t) })

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "volume", VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
	})
	fails(t, err, codes.Unavailable, "state")
	requireRooms(t, d, map[string]int{"images": 0, "scratch": 0})
}

// TestStatsOfWhatIsMountedOver: the usage of another filesystem is not the volume's.
func TestStatsOfWhatIsMountedOver(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	bringUp(t, d, claim)
	require.NoError(t, unix.Mount("tmpfs", claim.TargetPath, "tmpfs", 0, "size=8M"))

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
	require.NoError(t, unix.Unmount(claim.TargetPath, 0))

	if err == nil {
		require.NotEqual(t, int64(8*mib), answer.GetUsage()[0].GetTotal(), "bytes in all, which are those of the tmpfs over the volume")
	}
}

// TestAGroupThatFailsAtItsLastMember leaves none of the members before it.
func TestAGroupThatFailsAtItsLastMember(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stalling(t)
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
	requireRooms(t, d, map[string]int{"snapshots": 0, "scratch": 0})

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "snapshots of a group that failed")
	_, err = d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
	require.NoError(t, err, "create the group again")
}

// TestACloneThatMeetsAnExpansion: the source is expanded after the clone was asked for
// and before it is taken. The clone's image has the size that the clone is said to have.
func TestACloneThatMeetsAnExpansion(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stalling(t)
	d := harness.Start(t, there, func(c *driver.Config) { c.CoalesceWindow = 0 })
	id := oneBlock(t, d, "source")

	var calls sync.WaitGroup

	// The expansion stops in ftruncate, before the volume's new size is recorded.
	served.Inject(t, faults.Fault{Name: filepath.Join("pool", "images", id+".img"), Ops: faults.Writes, Hang: true})
	calls.Go(func() {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib},
		})
		assert.NoError(t, err)
	})
	require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond,
		"waited for the expansion to grow the image")

	var clone *csi.CreateVolumeResponse

	calls.Go(func() {
		request := &csi.CreateVolumeRequest{
			Name: "clone", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: ofVolume(id),
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
	calls.Wait()
	require.False(t, t.Failed(), "want: no goroutine of the test has failed")

	info, err := os.Stat(imageOf(d, clone.GetVolume().GetVolumeId()))
	require.NoError(t, err)
	require.Equal(t, clone.GetVolume().GetCapacityBytes(), info.Size(), "bytes of the clone's image, as its capacity says")
}
