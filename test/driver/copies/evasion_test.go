package copies_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/tenant"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// groupOf returns the quota group that limits a volume.
func groupOf(t *testing.T, path string) btrfs.Group {
	t.Helper()

	directory, err := os.Open(path)
	require.NoError(t, err)

	defer directory.Close()

	id, err := btrfs.ID(directory)
	require.NoError(t, err)

	return btrfs.GroupOf(1, id)
}

// TestEvadedSizeLimitsAreReported has a pod make a subvolume that counts for another volume: without a
// call it counts for its own soon, which both views report, and both volumes can be deleted.
func TestEvadedSizeLimitsAreReported(t *testing.T) {
	d := onBtrfs(t)
	evading := harness.NewVolume(t, d, directoryRequest("evading", nil))
	other := harness.NewVolume(t, d, directoryRequest("other", nil))

	harness.BringUp(t, d, evading)
	harness.BringUp(t, d, other)
	tenant.Own(t, evading.TargetPath)

	const inside = "inside"

	group := groupOf(t, other.TargetPath)

	require.NoError(t, tenant.Call(t, evading.TargetPath, func(path string) error {
		return testpool.MakeSubvolume(path, inside, 0, group)
	}))
	harness.AwaitReason(t, d, evading.VolumeID, health.SizeLimitEvaded)
	require.Empty(t, harness.ReasonsOf(t, d, other.VolumeID), "want: the other volume is healthy")

	listed, err := d.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1, "want: the evading volume alone is listed")
	require.Equal(t, evading.VolumeID, listed.GetEntries()[0].GetVolumeId())
	require.Equal(t, string(health.SizeLimitEvaded), listed.GetEntries()[0].GetHealthStatuses()[0].GetReason())

	require.ErrorIs(t, writeFile(evading, filepath.Join(inside, "file"), 2*directoryBytes), unix.EDQUOT)
	require.NoError(t, writeFile(other, "file", directoryBytes/2))

	for _, each := range []*csiclient.Publication{evading, other} {
		harness.TakeDown(t, d, each)

		_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: each.VolumeID})
		require.NoError(t, err)
	}

	harness.RequireEntries(t, d, map[string]int{"directories": 0, "removing": 0, "scratch": 0})
}

// TestALostSizeLimitIsSetAgain removes the quota group of a volume: a driver that dies while it makes a
// spoilt group again leaves that.
func TestALostSizeLimitIsSetAgain(t *testing.T) {
	d := onBtrfs(t, harness.Relists)
	claim := harness.NewVolume(t, d, directoryRequest("limited", nil))
	harness.BringUp(t, d, claim)

	pool, err := os.Open(d.Config.Pools["default"])
	require.NoError(t, err)

	defer pool.Close()

	group := groupOf(t, claim.TargetPath)
	require.NoError(t, btrfs.RemoveGroup(pool, group))

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		groups, err := btrfs.Groups(pool)
		require.NoError(c, err)
		require.Contains(c, groups, group)
	}, time.Minute, 10*time.Millisecond, "want: the volume has a quota group again")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.ErrorIs(c, writeFile(claim, "file", 2*directoryBytes), unix.EDQUOT)
	}, time.Minute, 10*time.Millisecond, "want: the volume is limited to its size again")
	require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: the volume is healthy")

	harness.TakeDown(t, d, claim)
}

// TestQuotaGroupsOfRemovedVolumesGo deletes a volume before its snapshot: the kernel then keeps its
// group, and the driver removes that without a restart.
func TestQuotaGroupsOfRemovedVolumesGo(t *testing.T) {
	d := onBtrfs(t)
	claim := harness.NewVolume(t, d, directoryRequest("source", nil))
	harness.BringUp(t, d, claim)
	require.NoError(t, writeFile(claim, "file", harness.MiB))

	pool, err := os.Open(d.Config.Pools["default"])
	require.NoError(t, err)

	defer pool.Close()

	own := btrfs.GroupOf(0, groupOf(t, claim.TargetPath).Number())

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: claim.VolumeID})
	require.NoError(t, err)
	harness.TakeDown(t, d, claim)

	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)
	cleanSubvolumes(t, pool.Name())

	groups, err := btrfs.Groups(pool)
	require.NoError(t, err)
	require.Contains(t, groups, own, "the kernel keeps it while the snapshot uses its space")

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
	require.NoError(t, err)
	cleanSubvolumes(t, pool.Name())
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		groups, err := btrfs.Groups(pool)
		require.NoError(c, err)
		require.NotContains(c, groups, own)
	}, time.Minute, 100*time.Millisecond, "want: the quota group of the removed volume goes")
}

// cleanSubvolumes waits until the kernel has freed removed subvolumes.
func cleanSubvolumes(t *testing.T, path string) {
	t.Helper()

	for _, each := range []string{"filesystem", "subvolume"} {
		output, err := child.Command(t, "btrfs", each, "sync", path).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}
