package copies_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// directoryBytes is the size of the directory volumes.
const directoryBytes = 16 * harness.MiB

// onBtrfs starts a driver with a pool on a btrfs.
func onBtrfs(t *testing.T, options ...harness.Option) *harness.Driver {
	t.Helper()
	namespace.NeedRoot(t)

	directory := testpool.Btrfs(t, harness.GiB)

	return harness.Start(t, append(options, func(c *driver.Config) { c.Pools = map[string]string{"default": directory} })...)
}

func directoryRequest(name string, source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: harness.DirectoryBacked(), VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: directoryBytes},
	}
}

// writeFile writes a file of so many bytes into a published volume and syncs it.
func writeFile(claim *csiclient.Publication, name string, bytes int64) error {
	file, err := os.Create(filepath.Join(claim.TargetPath, name))
	if err != nil {
		return err
	}
	defer file.Close()

	if _, err := file.Write(make([]byte, bytes)); err != nil {
		return err
	}

	return file.Sync()
}

// bytesOf returns the bytes of NodeGetVolumeStats.
func bytesOf(ctx context.Context, t *testing.T, d *harness.Driver, claim *csiclient.Publication) *csi.VolumeUsage {
	t.Helper()

	stats, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
	require.NoError(t, err)
	require.Equal(t, csi.VolumeUsage_BYTES, stats.GetUsage()[0].GetUnit(), "want: the first usage is in bytes")

	return stats.GetUsage()[0]
}

// TestDirectoriesOnBtrfsHaveASizeLimit fills a volume, expands it and fills it again.
func TestDirectoriesOnBtrfsHaveASizeLimit(t *testing.T) {
	d := onBtrfs(t)
	claim := harness.NewVolume(t, d, directoryRequest("limited", nil))
	require.Equal(t, "quota", claim.VolumeContext["sizeLimit"])
	harness.BringUp(t, d, claim)

	require.NoError(t, writeFile(claim, "half", directoryBytes/2))
	require.ErrorIs(t, writeFile(claim, "more", directoryBytes), unix.EDQUOT)

	_, err := d.NodeExpandVolume(t.Context(), expandOnNode(claim, directoryBytes+harness.MiB, 0))
	harness.RequireCode(t, err, codes.OutOfRange, "ControllerExpandVolume")

	expanded, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: directoryBytes + harness.MiB},
	})
	require.NoError(t, err, "a full volume is expanded")
	require.False(t, expanded.GetNodeExpansionRequired(), "want: the controller alone expands a directory")

	require.NoError(t, os.Remove(filepath.Join(claim.TargetPath, "more")))

	usage := bytesOf(t.Context(), t, d, claim)
	require.EqualValues(t, directoryBytes+harness.MiB, usage.GetTotal(), "want: the directory is as large as its limit")
	require.GreaterOrEqual(t, usage.GetUsed(), int64(directoryBytes/2), "want: the written bytes are used")
	require.Equal(t, usage.GetTotal()-usage.GetUsed(), usage.GetAvailable(), "want: the rest of the limit is available")

	_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * directoryBytes},
	})
	require.NoError(t, err)
	require.EqualValues(t, 2*directoryBytes, bytesOf(t.Context(), t, d, claim).GetTotal(), "want: the expanded directory has the larger limit")
	require.NoError(t, writeFile(claim, "more", directoryBytes))

	d.Restart(t)
	require.EqualValues(t, 2*directoryBytes, bytesOf(t.Context(), t, d, claim).GetTotal(), "want: the limit survives a restart")
	require.ErrorIs(t, writeFile(claim, "too much", directoryBytes), unix.EDQUOT)

	harness.TakeDown(t, d, claim)

	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)
	harness.RequireEntries(t, d, map[string]int{"directories": 0, "removing": 0, "scratch": 0})
}

func expandOnNode(claim *csiclient.Publication, required, limit int64) *csi.NodeExpandVolumeRequest {
	return &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath,
		CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit},
	}
}

// TestDirectoriesOnBtrfsAreExpandedByTheNode where the controller expands none.
func TestDirectoriesOnBtrfsAreExpandedByTheNode(t *testing.T) {
	d := onBtrfs(t, harness.WithoutCapabilities("controller:EXPAND_VOLUME"))
	claim := harness.NewVolume(t, d, directoryRequest("limited", nil))
	harness.BringUp(t, d, claim)

	for _, limit := range []int64{directoryBytes + 1, directoryBytes + 4095} {
		_, err := d.NodeExpandVolume(t.Context(), expandOnNode(claim, directoryBytes+1, limit))
		harness.RequireCode(t, err, codes.OutOfRange, claim.VolumeID, "limit_bytes")
	}

	_, err := d.NodeExpandVolume(t.Context(), expandOnNode(claim, 0, directoryBytes-1))
	harness.RequireCode(t, err, codes.OutOfRange, claim.VolumeID, "capacity_range")

	for _, required := range []int64{2*directoryBytes - 1, directoryBytes} {
		expanded, err := d.NodeExpandVolume(t.Context(), expandOnNode(claim, required, 2*directoryBytes))
		require.NoError(t, err)
		require.EqualValues(t, 2*directoryBytes, expanded.GetCapacityBytes(), "want: the size in whole blocks, which never shrinks")
		require.EqualValues(t, 2*directoryBytes, bytesOf(t.Context(), t, d, claim).GetTotal(), "want: the directory has that limit")
	}
}

// TestDirectoriesOnBtrfsAreCopiedInUse takes a snapshot and a clone of a volume that is in use, and
// restores the snapshot into a larger volume.
func TestDirectoriesOnBtrfsAreCopiedInUse(t *testing.T) {
	d := onBtrfs(t)
	claim := harness.NewVolume(t, d, directoryRequest("source", nil))
	harness.BringUp(t, d, claim)
	harness.WriteBlock(t, claim)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: claim.VolumeID})
	require.NoError(t, err)
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use at once")

	clone := harness.NewVolume(t, d, directoryRequest("clone", harness.FromVolume(claim.VolumeID)))
	harness.BringUp(t, d, clone)
	harness.RequireBlock(t, clone)
	require.EqualValues(t, directoryBytes, bytesOf(t.Context(), t, d, clone).GetTotal(), "want: the clone has the limit of its source")

	larger := directoryRequest("restored", harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()))
	larger.CapacityRange.RequiredBytes = 2 * directoryBytes
	restored := harness.NewVolume(t, d, larger)
	harness.BringUp(t, d, restored)
	harness.RequireBlock(t, restored)
	require.EqualValues(t, 2*directoryBytes, bytesOf(t.Context(), t, d, restored).GetTotal(), "want: the copy has the larger limit")
	require.ErrorIs(t, writeFile(restored, "too much", 3*directoryBytes), unix.EDQUOT)

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
	require.NoError(t, err)
	harness.RequireEntries(t, d, map[string]int{"directories": 3, "snapshots": 0, "scratch": 0, "removing": 0})
}
