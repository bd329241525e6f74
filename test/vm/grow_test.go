package vm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// streamBytes is the size of what is written into the space that is new.
const streamBytes = 64 * mib

// TestVolumesGrowInUse by online expansion through the whole driver: an application writes, the
// volume grows beneath it time and again, and a SIGKILL of the driver comes between the
// controller's half and the node's.
func TestVolumesGrowInUse(t *testing.T) {
	ext4, xfs := []string{"e2fsck", "-fn"}, []string{"xfs_repair", "-n", "-f"}
	btrfs := []string{"btrfs", "check", "--readonly"}

	for _, test := range []struct {
		fsType string
		first  int64
		// check must find nothing wrong with the image that follows.
		check []string
		// pool is the filesystem beneath the images: with and without reflink.
		pool string
	}{
		{fsType: "ext4", first: 64 * mib, check: ext4, pool: "ext4"},
		{fsType: "ext4", first: 64 * mib, check: ext4, pool: "xfs"},
		{fsType: "xfs", first: 320 * mib, check: xfs, pool: "xfs"},
		{fsType: "btrfs", first: 256 * mib, check: btrfs, pool: "ext4"},
	} {
		t.Run(test.fsType+" in a pool on "+test.pool, func(t *testing.T) {
			inMachine(t)

			d := startDriver(t, mountDisk(t, test.pool))
			v := newVolumeInUse(t, d, test.fsType, test.first)
			stream := filepath.Join(v.claim.TargetPath, "stream")

			v.grow(t, 512*mib)
			// More than the volume could hold before: the new space is there.
			reserve(t, filepath.Join(v.claim.TargetPath, "reserved"), test.first)
			writeStream(t, stream, streamBytes)
			v.grow(t, 5*gib)
			v.expandController(t, 6*gib)
			d.restartKilled(t)
			v.app.awaitRound(t)
			v.expandNode(t, 6*gib)
			v.requireGrown(t, 6*gib)
			verifyStream(t, stream, streamBytes)

			v.putAway(t)
			run(t, test.check[0], append(test.check[1:], v.image())...)
			v.takeOut(t)
			v.verifyAfterwards(t)
			verifyStream(t, stream, streamBytes)
			v.remove(t)
		})
	}
}

// volumeInUse is a published volume with an application that writes to it.
type volumeInUse struct {
	driver *driver
	claim  *csiclient.Publication
	app    *workload
	// What must not change, or the application would have noticed.
	staging, target, file identity
}

func newVolumeInUse(t *testing.T, d *driver, fsType string, size int64) *volumeInUse {
	t.Helper()

	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, fsType)
	created, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name:               "grown",
		CapacityRange:      &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability},
	})
	require.NoError(t, err)

	v := &volumeInUse{driver: d, claim: &csiclient.Publication{
		VolumeID:      created.GetVolume().GetVolumeId(),
		VolumeContext: created.GetVolume().GetVolumeContext(),
		Capability:    capability,
		NodeID:        nodeID,
		StagingPath:   filepath.Join(d.kubelet(), "plugins", "staging"),
		TargetPath:    filepath.Join(d.kubelet(), "pods", "one", "volume"),
	}}
	v.takeOut(t)
	require.LessOrEqual(t, totalBytes(t, v.claim.TargetPath), size, "size before it grows")

	v.app = startWorkload(t, v.dataPath())
	v.staging, v.target = identityOf(t, v.claim.StagingPath), identityOf(t, v.claim.TargetPath)
	v.file = identityOfFile(t, v.app.file)

	return v
}

// grow expands the volume as the orchestrator does, beneath the writer.
func (v *volumeInUse) grow(t *testing.T, size int64) {
	t.Helper()

	v.expandController(t, size)
	v.expandNode(t, size)
	v.requireGrown(t, size)
	// The orchestrator may ask again for what it has.
	v.expandController(t, size)
	v.expandNode(t, size)
}

func (v *volumeInUse) expandController(t *testing.T, size int64) {
	t.Helper()

	answer, err := v.driver.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId:         v.claim.VolumeID,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size},
		VolumeCapability: v.claim.Capability,
	})
	require.NoError(t, err)
	require.Equal(t, size, answer.GetCapacityBytes(), "want: the volume has the size that was asked for")
	require.True(t, answer.GetNodeExpansionRequired(), "a filesystem is the node's to grow")
}

func (v *volumeInUse) expandNode(t *testing.T, size int64) {
	t.Helper()

	answer, err := v.driver.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId:          v.claim.VolumeID,
		VolumePath:        v.claim.TargetPath,
		StagingTargetPath: v.claim.StagingPath,
		CapacityRange:     &csi.CapacityRange{RequiredBytes: size},
		VolumeCapability:  v.claim.Capability,
	})
	require.NoError(t, err)
	require.Equal(t, size, answer.GetCapacityBytes(), "want: the volume has the size that was asked for")
}

// requireGrown holds the volume against its new size, and the application
// against having noticed anything but more free space.
func (v *volumeInUse) requireGrown(t *testing.T, size int64) {
	t.Helper()

	total := totalBytes(t, v.claim.TargetPath)
	require.LessOrEqual(t, total, size, "want: the filesystem is not larger than its volume")
	require.Greater(t, total, size*85/100, "what the filesystem keeps for itself is less than 15 %%")
	require.Equal(t, total, v.statsBytes(t), "NodeGetVolumeStats and statfs")

	require.Equal(t, v.staging, identityOf(t, v.claim.StagingPath), "the staging was mounted again")
	require.Equal(t, v.target, identityOf(t, v.claim.TargetPath), "the publication was mounted again")
	require.Equal(t, v.file, identityOfFile(t, v.app.file), "the application's open file")
	require.Equal(t, v.file, identityOf(t, v.dataPath()), "the application's file by its path")

	v.app.awaitRound(t)
	v.app.verify(t, v.app.file)
}

func (v *volumeInUse) statsBytes(t *testing.T) int64 {
	t.Helper()

	stats, err := v.driver.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId:          v.claim.VolumeID,
		VolumePath:        v.claim.TargetPath,
		StagingTargetPath: v.claim.StagingPath,
	})
	require.NoError(t, err)

	for _, usage := range stats.GetUsage() {
		if usage.GetUnit() == csi.VolumeUsage_BYTES {
			return usage.GetTotal()
		}
	}

	require.FailNow(t, "NodeGetVolumeStats says nothing about bytes")

	return 0
}

// takeOut attaches, stages and publishes.
func (v *volumeInUse) takeOut(t *testing.T) {
	t.Helper()

	require.NoError(t, v.driver.Attach(t.Context(), v.claim))
	require.NoError(t, v.driver.Stage(t.Context(), v.claim))
	require.NoError(t, v.driver.Publish(t.Context(), v.claim))
}

// putAway ends the application, then undoes takeOut.
func (v *volumeInUse) putAway(t *testing.T) {
	t.Helper()

	v.app.stop()
	require.NoError(t, v.driver.Unpublish(t.Context(), v.claim))
	require.NoError(t, v.driver.Unstage(t.Context(), v.claim))
	require.NoError(t, v.driver.Detach(t.Context(), v.claim))
}

// verifyAfterwards reads the application's data through a mount that has none
// of it in memory.
func (v *volumeInUse) verifyAfterwards(t *testing.T) {
	t.Helper()

	file, err := os.Open(v.dataPath())
	require.NoError(t, err)

	defer file.Close()

	v.app.verify(t, file)
}

// remove deletes the volume and searches for leftovers.
func (v *volumeInUse) remove(t *testing.T) {
	t.Helper()

	v.putAway(t)

	_, err := v.driver.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.claim.VolumeID})
	require.NoError(t, err)

	require.NoFileExists(t, v.image())
	require.NoDirExists(t, v.claim.TargetPath)

	attached, err := filepath.Glob(attachedLoops)
	require.NoError(t, err)
	require.Empty(t, attached, "still attached: loop devices")

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(v.driver.kubelet()))
	require.NoError(t, err)
	require.Empty(t, mounts, "still mounted: volumes")
}

func (v *volumeInUse) dataPath() string { return filepath.Join(v.claim.TargetPath, "data") }

func (v *volumeInUse) image() string {
	return filepath.Join(v.driver.pool, "images", v.claim.VolumeID+".img")
}
