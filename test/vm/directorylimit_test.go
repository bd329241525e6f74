package vm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/test/await"
)

const (
	// firstProject is the lowest project id of the driver.
	firstProject = 1 << 20
	// quotaSlack is what a filesystem may need within a limit beside the data: directories and maps
	// of extents.
	quotaSlack = 512 << 10
)

// TestDirectoryLimits is the lifecycle of directory volumes in a pool whose filesystem has project
// quotas, through the whole driver.
func TestDirectoryLimits(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			disk := mountQuotaDisk(t, fsType)
			d := startDriver(t, filepath.Join(disk, "pool"))
			before := d.capacity(t)
			v := d.newDirectory(t, "limited", 16*mib, nil)

			require.Equal(t, "quota", v.VolumeContext["sizeLimit"])
			d.requireDoctor(t, "directory volumes are projects with quotas, which limit their sizes")
			require.InDelta(t, before-16*mib, d.capacity(t), quotaSlack, "want: the directory takes its size of the pool")
			d.requireUsage(t, v, 16*mib, 0)
			written := fillUp(t, filepath.Join(v.TargetPath, "first"))
			require.InDelta(t, 16*mib, written, quotaSlack, "want: the directory is full at its limit")
			d.requireUsage(t, v, 16*mib, written)
			require.InDelta(t, before-16*mib, d.capacity(t), quotaSlack, "what is allocated is provisioned already")

			d.expandDirectory(t, v, 32*mib)
			written += fillUp(t, filepath.Join(v.TargetPath, "second"))
			require.InDelta(t, 32*mib, written, quotaSlack, "want: the expanded directory is full at its limit")
			d.requireUsage(t, v, 32*mib, written)
			require.InDelta(t, before-32*mib, d.capacity(t), quotaSlack, "want: the expanded directory takes its size of the pool")

			// A limit of 2048 inodes: the root, two files and these.
			require.NoError(t, os.Remove(filepath.Join(v.TargetPath, "first")))
			require.EqualValues(t, 2048-2, makeFiles(t, v.TargetPath), "want: the directory has as many inodes as its limit")

			d.restartKilled(t)
			requireLimit(t, withoutPrivilege(t, func() error {
				return os.Mkdir(filepath.Join(v.TargetPath, "one-too-many"), directoryMode)
			}))
			removeAll(t, v.TargetPath, "empty-*")
			// Copied with the help of a directory that has no project.
			require.NoError(t, os.Link(filepath.Join(v.TargetPath, "second"), filepath.Join(v.TargetPath, "link")))

			copies := d.requireLimitedCopies(t, v)

			for _, each := range append(copies, v) {
				d.removeDirectory(t, each)
			}

			requireNoProjects(t, disk)
		})
	}
}

// TestDirectoryLimitsOfEmbeddedPool mounts the filesystem of the pool with project quotas, also after
// the driver and the mount are gone.
func TestDirectoryLimitsOfEmbeddedPool(t *testing.T) {
	inMachine(t)

	// Without reflinks, so that a filesystem is embedded.
	disk := mountDisk(t, "ext4")
	d := startDriver(t, disk, "--pool-image-size=1Gi")
	v := d.newDirectory(t, "limited", 16*mib, nil)

	require.Equal(t, "quota", v.VolumeContext["sizeLimit"])
	require.InDelta(t, 16*mib, fillUp(t, filepath.Join(v.TargetPath, "data")), quotaSlack, "want: the directory is full at its limit")

	d.unpublishDirectory(t, v)
	require.NoError(t, d.process.Process.Kill())
	_ = await.Receive(t, d.exited, "the killed driver to end")
	require.NoError(t, unix.Unmount(filepath.Join(disk, "mounted"), 0))
	d.serve(t)
	d.waitReady(t)

	d.publishDirectory(t, v)
	d.requireUsage(t, v, 16*mib, 16*mib)
	d.expandDirectory(t, v, 32*mib)
	require.InDelta(t, 16*mib, fillUp(t, filepath.Join(v.TargetPath, "more")), quotaSlack, "want: the expanded directory is full at its limit")
	d.removeDirectory(t, v)
	requireNoProjects(t, filepath.Join(disk, "mounted"))
}

// TestDirectoryWithoutLimits is a pool whose filesystem could have project quotas, but is mounted
// without.
func TestDirectoryWithoutLimits(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			d := startDriver(t, mountDisk(t, fsType))
			v := d.newDirectory(t, "unlimited", 4*mib, nil)
			require.Equal(t, "none", v.VolumeContext["sizeLimit"])

			const reason = "the filesystem is mounted without project quotas; unmount it"

			log, err := os.ReadFile(d.logPath())
			require.NoError(t, err)
			require.Contains(t, string(log), reason)
			d.requireDoctor(t, reason)

			reserve(t, filepath.Join(v.TargetPath, "beyond"), 16*mib)
			d.removeDirectory(t, v)
		})
	}
}

// newDirectory creates a directory volume and publishes it.
func (d *driver) newDirectory(t *testing.T, name string, size int64, from *csi.VolumeContentSource) *csiclient.Publication {
	t.Helper()

	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")
	created, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name:                name,
		CapacityRange:       &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities:  []*csi.VolumeCapability{capability},
		Parameters:          map[string]string{"backing": "directory"},
		VolumeContentSource: from,
	})
	require.NoError(t, err)
	require.Equal(t, size, created.GetVolume().GetCapacityBytes(), "want: the volume has the size that was asked for")

	v := &csiclient.Publication{
		VolumeID:      created.GetVolume().GetVolumeId(),
		VolumeContext: created.GetVolume().GetVolumeContext(),
		Capability:    capability,
		NodeID:        nodeID,
		StagingPath:   filepath.Join(d.kubelet(), "plugins", name),
		TargetPath:    filepath.Join(d.kubelet(), "pods", name, "volume"),
	}
	d.publishDirectory(t, v)

	return v
}

func (d *driver) publishDirectory(t *testing.T, v *csiclient.Publication) {
	t.Helper()

	require.NoError(t, d.Attach(t.Context(), v))
	require.NoError(t, d.Stage(t.Context(), v))
	require.NoError(t, d.Publish(t.Context(), v))
}

func (d *driver) unpublishDirectory(t *testing.T, v *csiclient.Publication) {
	t.Helper()

	require.NoError(t, d.Unpublish(t.Context(), v))
	require.NoError(t, d.Unstage(t.Context(), v))
	require.NoError(t, d.Detach(t.Context(), v))
}

func (d *driver) removeDirectory(t *testing.T, v *csiclient.Publication) {
	t.Helper()

	d.unpublishDirectory(t, v)

	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.VolumeID})
	require.NoError(t, err)
}

func (d *driver) expandDirectory(t *testing.T, v *csiclient.Publication, size int64) {
	t.Helper()

	answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId:         v.VolumeID,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size},
		VolumeCapability: v.Capability,
	})
	require.NoError(t, err)
	require.Equal(t, size, answer.GetCapacityBytes(), "want: the volume has the size that was asked for")
	require.False(t, answer.GetNodeExpansionRequired(), "the controller raises the limit")
}

// requireUsage compares NodeGetVolumeStats with the limit and with what was written.
func (d *driver) requireUsage(t *testing.T, v *csiclient.Publication, total, used int64) {
	t.Helper()

	stats, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId: v.VolumeID, VolumePath: v.TargetPath, StagingTargetPath: v.StagingPath,
	})
	require.NoError(t, err)
	require.Len(t, stats.GetUsage(), 2, "want: the usage has bytes and inodes")

	bytes, inodes := stats.GetUsage()[0], stats.GetUsage()[1]
	require.Equal(t, total, bytes.GetTotal(), "want: the directory is as large as its limit")
	require.InDelta(t, used, bytes.GetUsed(), quotaSlack, "want: the written bytes are used")
	require.Equal(t, total-bytes.GetUsed(), bytes.GetAvailable(), "want: the rest of the limit is available")

	require.Equal(t, max(1024, total/(16<<10)), inodes.GetTotal(), "want: the limit of inodes follows from the size")
	require.EqualValues(t, countInodes(t, v.TargetPath), inodes.GetUsed(), "want: the inodes are those of the directory")
}

// requireDoctor expects words in what the doctor reports about the pool's directories.
func (d *driver) requireDoctor(t *testing.T, words string) {
	t.Helper()

	// Without the variables of the guest's init, which the doctor would take for flags.
	report := run(t, "env", "-i", setting(t, "TOUCHSTONE_BINARY"), "ctl", "doctor", "--without-driver", "--pool=default="+d.pool,
		"pool-directories")
	require.Contains(t, report, words)
}

// countInodes counts a directory and the files in it.
func countInodes(t *testing.T, directory string) int {
	t.Helper()

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)

	inodes := map[uint64]bool{}
	for _, each := range entries {
		inodes[identityOf(t, filepath.Join(directory, each.Name())).inode] = true
	}

	return 1 + len(inodes)
}

// capacity returns the answer of GetCapacity.
func (d *driver) capacity(t *testing.T) int64 {
	t.Helper()

	answer, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"backing": "directory"}})
	require.NoError(t, err)

	return answer.GetAvailableCapacity()
}

// requireLimitedCopies takes a snapshot and makes volumes of it and of the volume: each has a limit
// of its own, and none counts as another's.
func (d *driver) requireLimitedCopies(t *testing.T, v *csiclient.Publication) []*csiclient.Publication {
	t.Helper()

	// Copied file by file, so not while it is in use.
	d.unpublishDirectory(t, v)

	snapshot, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: v.VolumeID, Name: "snapshot"})
	require.NoError(t, err)

	id := snapshot.GetSnapshot().GetSnapshotId()
	sources := []*csi.VolumeContentSource{
		{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}},
		{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.VolumeID}}},
	}

	var copies []*csiclient.Publication

	for i, source := range sources {
		made := d.newDirectory(t, fmt.Sprintf("copy-%d", i), 40*mib, source)
		copies = append(copies, made)

		d.requireUsage(t, made, 40*mib, 16*mib)
		more := fillUp(t, filepath.Join(made.TargetPath, "more"))
		require.InDelta(t, 24*mib, more, 2*quotaSlack, "want: the copy is full at its limit")
		d.requireUsage(t, made, 40*mib, 16*mib+more)
	}

	// A full volume can be copied to one of the same size.
	d.unpublishDirectory(t, copies[0])
	full := d.newDirectory(t, "full", 40*mib, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: copies[0].VolumeID},
	}})
	d.publishDirectory(t, copies[0])
	d.requireUsage(t, full, 40*mib, 40*mib)

	copies = append(copies, full)

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	require.NoError(t, err)

	d.publishDirectory(t, v)
	d.requireUsage(t, v, 32*mib, 16*mib)

	return copies
}

// requireNoProjects waits until no project has files or limits: the space of removed files is freed
// in the background.
func requireNoProjects(t *testing.T, disk string) {
	t.Helper()

	root := openDirectory(t, disk)

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for found, err := range projectquota.All(root, firstProject) {
			assert.NoError(c, err)
			assert.Zero(c, found.Quota, "project %d", found.ID)
		}
	}, waitLimit, time.Second, "want: the projects of the volumes have no limit left")
}

func removeAll(t *testing.T, directory, pattern string) {
	t.Helper()

	names, err := filepath.Glob(filepath.Join(directory, pattern))
	require.NoError(t, err)

	for _, name := range names {
		require.NoError(t, os.Remove(name))
	}
}
