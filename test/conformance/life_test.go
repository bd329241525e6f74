package conformance_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestLifecycleAsACO has a CO that asks for the capabilities first and calls each RPC of a node, of
// snapshots and of groups, twice where the spec wants it to be idempotent, with paths that are longer
// than a plugin may refuse.
func TestLifecycleAsACO(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, capability := range map[string]*csi.VolumeCapability{"mount": mounted, "block": asBlock} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, func(c *driver.Config) { c.MaxVolumesPerNode = 2 })
			_, err := d.Capabilities(t.Context())
			require.NoError(t, err)

			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				CapacityRange: harness.RequiredBytes(size), VolumeCapabilities: []*csi.VolumeCapability{capability},
			})
			long := strings.Repeat("n", 128)
			claim.StagingPath = filepath.Join(d.Config.KubeletDir, "staging", long)
			claim.TargetPath = filepath.Join(d.Config.KubeletDir, "pods", long, "mount")
			t.Cleanup(func() { harness.TakeDown(t, d, claim) })

			up(t, d, claim)
			asked(t, d, claim)
			down(t, d, claim)
			grown(t, d, claim)
			snapshots(t, d, claim)
			harness.DeleteVolume(t, d, claim.VolumeID)
		})
	}
}

func up(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, d.Attach(t.Context(), claim))

	for range 2 {
		require.NoError(t, d.Stage(t.Context(), claim))
	}

	for range 2 {
		require.NoError(t, d.Publish(t.Context(), claim))
	}

	found, err := os.Stat(claim.TargetPath)
	require.NoError(t, err)

	if claim.Capability.GetBlock() != nil {
		require.Equal(t, os.ModeDevice, found.Mode().Type(), "the target is a block device")
		conformance.Shows(t, "NodePublishVolume", "volume_capability.block given", "a block device at target_path")
	} else {
		require.True(t, found.IsDir(), "the target is a directory")
		require.NotEmpty(t, harness.MountOptions(t, claim.TargetPath), "it is mounted")
		conformance.Shows(t, "NodePublishVolume", "volume_capability.mount given", "a mounted directory at target_path")
	}

	require.NoError(t, harness.WriteThrough(harness.DataPath(claim)))
	conformance.Shows(t, "NodeStageVolume", "SINGLE_NODE_WRITER given", "the volume can be written")
}

// asked calls what changes nothing.
func asked(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	_, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)

	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, StagingTargetPath: claim.StagingPath,
	})
	require.NoError(t, err)

	_, err = d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{
		VolumeId: claim.VolumeID, VolumePublishPath: claim.TargetPath, StagingTargetPath: claim.StagingPath,
	})
	require.NoError(t, err)

	_, err = d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	require.NoError(t, err)

	// It has this size: not every kernel grows what is mounted.
	for range 2 {
		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, StagingTargetPath: claim.StagingPath, CapacityRange: harness.RequiredBytes(size),
		})
		require.NoError(t, err)
	}
}

func grown(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	for range 2 {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(2 * size),
		})
		require.NoError(t, err)
	}
}

func snapshots(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	var made *csi.CreateSnapshotResponse

	for range 2 {
		var err error

		made, err = d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: claim.VolumeID})
		require.NoError(t, err)
	}

	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{claim.VolumeID}}
	grouped, err := d.CreateGroupSnapshotAndWait(t.Context(), request)
	require.NoError(t, err)

	again, err := d.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, grouped.GetGroupSnapshot().GetGroupSnapshotId(), again.GetGroupSnapshot().GetGroupSnapshotId())

	snapshot, group := made.GetSnapshot().GetSnapshotId(), grouped.GetGroupSnapshot()
	member := group.GetSnapshots()[0].GetSnapshotId()

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 2, "want: both snapshots are listed")

	for _, each := range []string{snapshot, member} {
		_, err = d.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: each})
		require.NoError(t, err)
	}

	_, err = d.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: []string{member},
	})
	require.NoError(t, err)

	for range 2 {
		_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot})
		require.NoError(t, err)

		_, err = d.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{
			GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: []string{member},
		})
		require.NoError(t, err)
	}

	listed, err = d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "want: no deleted snapshot is listed")
	conformance.Shows(t, "ListSnapshots", "all snapshots are deleted", "no entry")
}

func down(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	for range 2 {
		require.NoError(t, d.Unpublish(t.Context(), claim))
	}

	_, err := os.Lstat(claim.TargetPath)
	require.ErrorIs(t, err, os.ErrNotExist, "the target")
	conformance.Shows(t, "NodeUnpublishVolume", "published at a path", "nothing at target_path")

	for range 2 {
		require.NoError(t, d.Unstage(t.Context(), claim))
	}

	harness.RequireUnstaged(t, d, claim)
	conformance.Shows(t, "NodeUnstageVolume", "staged", "no mount and no loop device")
	require.NoError(t, d.Detach(t.Context(), claim))
}
