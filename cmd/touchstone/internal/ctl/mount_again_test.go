package ctl_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// hiddenStaging returns the path at which `volume mount` has staged the only volume of the driver.
func hiddenStaging(t *testing.T, d *harness.Driver) string {
	t.Helper()

	found, err := filepath.Glob(filepath.Join(d.Config.KubeletDir, ".touchstone-*"))
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the volume has one hidden staging path")

	return found[0]
}

// TestMountCompletesMissingMounts: `volume mount` of a volume that another program has unmounted
// mounts it again, and says "already" only if no mount was missing.
func TestMountCompletesMissingMounts(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)
	path := filepath.Join(d.Config.KubeletDir, "mnt")

	requireSays("is mounted at "+path, "volume", "mount", "data", path, "--create", "--size", "64Mi")
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600))
	staging := hiddenStaging(t, d)

	for name, unmounted := range map[string][]string{
		"the target": {path}, "the staging": {staging}, "both": {path, staging},
	} {
		for _, each := range unmounted {
			harness.Unmount(t, each)
		}

		requireSays("data is mounted at "+path+" again", "volume", "mount", "data", path)
		harness.RequireFile(t, filepath.Join(path, "file"), "kept")
		harness.RequireFile(t, filepath.Join(staging, "file"), "kept")
		requireSays("data is mounted at "+path+" already", "volume", "mount", "data", path)
		t.Log(name)
	}

	// Files that were written to the path in between would be hidden.
	harness.Unmount(t, path)
	require.NoError(t, os.WriteFile(filepath.Join(path, "beneath"), nil, 0o600))
	_, err := run("volume", "mount", "data", path)
	errtext.Require(t, err, "not empty")
	require.NoError(t, os.Remove(filepath.Join(path, "beneath")))
	requireSays("again", "volume", "mount", "data", path)

	require.NoError(t, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	_, err = run("volume", "mount", "data", path)
	errtext.Require(t, err, "mounted read-only, not for writing")

	requireSays("unmounted", "volume", "umount", "data")
	out, err := run("volume", "rm", "data", "data")
	errtext.Require(t, err, "data: nothing to delete")
	require.Equal(t, "deleted data\n", out)
}

// TestMountRefusesAnotherAccess: `volume mount` of a mounted volume refuses an access that it does not
// have with both, and the mount stays as it is.
func TestMountRefusesAnotherAccess(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)
	path, raw := filepath.Join(d.Config.KubeletDir, "mnt"), filepath.Join(d.Config.KubeletDir, "raw")

	requireSays("is mounted at "+path, "volume", "mount", "data", path, "--create", "--size", "64Mi", "--mount-flag", "noatime")
	requireSays("is mounted at "+raw, "volume", "mount", "raw", raw, "--create", "--size", "64Mi", "--block")

	for _, test := range []struct {
		want string
		args []string
	}{
		{"readonly false, not true", []string{"data", path, "--readonly", "--mount-flag", "noatime"}},
		{"access type mount, not block", []string{"data", path, "--block"}},
		{"fs_type is xfs, but the volume was made for ext4", []string{"data", path, "--fs", "xfs", "--mount-flag", "noatime"}},
		{
			"access mode SINGLE_NODE_WRITER, not SINGLE_NODE_MULTI_WRITER",
			[]string{"data", path, "--access-mode", "single-node-multi-writer", "--mount-flag", "noatime"},
		},
		{"mount_flags that are others (1, not these 0)", []string{"data", path}},
		{"capacity 67108864, not required 134217728", []string{"data", path, "--create", "--size", "128Mi"}},
		{"it is a raw block volume", []string{"raw", raw, "--fs", "ext4"}},
		{"it is published at " + path, []string{"data", path + "2", "--mount-flag", "noatime"}},
	} {
		_, err := run(append([]string{"volume", "mount"}, test.args...)...)
		errtext.Require(t, err, test.want)
	}

	requireSays("already", "volume", "mount", "data", path, "--create", "--size", "64Mi", "--mount-flag", "noatime")
	requireSays("already", "volume", "mount", "raw", raw)
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))

	requireSays("unmounted", "volume", "umount", "data")
	requireSays("unmounted", "volume", "umount", "raw")
}

// TestCreateObservesTheVolume: `volume create` of a volume that exists and has lost its image fails.
func TestCreateObservesTheVolume(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)

	requireSays("64 MiB", "volume", "create", "data", "--size", "64Mi")
	requireSays("64 MiB", "volume", "create", "data", "--size", "64Mi")

	images, err := filepath.Glob(filepath.Join(d.Pool(), "images", "*"))
	require.NoError(t, err)
	require.Len(t, images, 1, "want: the volume has one image")
	require.NoError(t, os.Rename(images[0], images[0]+".away"))

	require.Eventually(t, func() bool {
		_, err = run("volume", "create", "data", "--size", "64Mi")

		return err != nil
	}, await.Limit, time.Millisecond, "want: the missing image fails the creation")
	errtext.Require(t, err, "volume data exists: not healthy: INACCESSIBLE BackingFileMissing")

	require.NoError(t, os.Rename(images[0]+".away", images[0]))
	requireSays("deleted", "volume", "rm", "data")
}

// TestUmountCompletesAFailedUmount: a repeated `volume umount` detaches a volume whose staging was
// busy, and a failed `volume mount` leaves the attachment of a volume that was attached before.
func TestUmountCompletesAFailedUmount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)
	path := filepath.Join(d.Config.KubeletDir, "mnt")

	requireSays("is mounted at "+path, "volume", "mount", "data", path, "--create", "--size", "64Mi")

	staging := hiddenStaging(t, d)
	busy, err := os.Open(staging)
	require.NoError(t, err)
	_, err = run("volume", "umount", "data")
	errtext.Require(t, err, "not detached: touchstone ctl volume unpublish")
	require.NoError(t, busy.Close())

	requireSays("data is unmounted", "volume", "umount", "data")
	require.NoDirExists(t, staging)

	listed, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1, "want: the volume is still listed")
	require.Empty(t, listed.GetEntries()[0].GetStatus().GetPublishedNodeIds(), "want: the volume is detached")

	claim := d.Claim(t, listed.GetEntries()[0].GetVolume().GetVolumeId())
	claim.Capability = csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")
	require.NoError(t, d.Attach(t.Context(), claim))

	_, err = run("volume", "mount", "data", filepath.Join(t.TempDir(), "data"))
	errtext.Require(t, err, "--allow-path")

	listed, err = d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{d.Config.NodeID}, listed.GetEntries()[0].GetStatus().GetPublishedNodeIds())

	require.NoError(t, d.Detach(t.Context(), claim))
	requireSays("deleted", "volume", "rm", "data")
}
