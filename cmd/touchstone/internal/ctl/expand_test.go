package ctl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// sizeAt returns the size of a filesystem, or of the device whose node is at the path.
func sizeAt(t *testing.T, path string) int64 {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	if info, err := file.Stat(); err == nil && !info.IsDir() {
		size, err := file.Seek(0, 2)
		require.NoError(t, err)

		return size
	}

	var stat unix.Statfs_t
	require.NoError(t, unix.Fstatfs(int(file.Fd()), &stat))

	return int64(stat.Blocks) * stat.Bsize
}

// runRemedy runs the commands at the end of an error.
func runRemedy(t *testing.T, run func(...string) (string, error), failure error) {
	t.Helper()

	require.Equal(t, 1, ctl.ExitCode(failure), "want: the command exits with 1")

	_, commands, found := strings.Cut(failure.Error(), " run ")
	require.True(t, found, failure)

	for command := range strings.SplitSeq(commands, " && ") {
		arguments, found := strings.CutPrefix(command, "touchstone ctl ")
		require.True(t, found, command)

		_, err := run(strings.Fields(arguments)...)
		require.NoError(t, err, command)
	}
}

// TestExpandGrowsTheMountedFilesystem: `volume expand` of a volume in use grows device and
// filesystem, at the path that it finds, and refuses a smaller size.
func TestExpandGrowsTheMountedFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)

	for name, use := range map[string][]string{
		"ext4": {"--fs", "ext4"}, "xfs": {"--fs", "xfs"}, "btrfs": {"--fs", "btrfs", "--access-mode", "single-node-multi-writer"}, "raw": {"--block"},
	} {
		path := filepath.Join(d.Config.KubeletDir, name)
		requireSays("is mounted", append([]string{"volume", "mount", name, path, "--create", "--size", "320Mi"}, use...)...)
		before := sizeAt(t, path)

		for range 2 {
			out, err := run("volume", "expand", name, "--size", "512Mi")
			if err != nil {
				runRemedy(t, run, err) // This kernel may not permit it to grow while it is mounted.
			} else {
				require.Contains(t, out, "Node's part:  done")
			}

			require.Greater(t, sizeAt(t, path), before+128<<20, name)
		}

		out, err := run("volume", "expand", name, "--size", "400Mi")
		errtext.Require(t, err, "has 536870912 bytes (512 MiB), and --size is 419430400 (400 MiB): a volume never shrinks")
		require.Equal(t, 1, ctl.ExitCode(err), "want: shrinking exits with 1")
		require.Empty(t, out, "want: shrinking prints nothing on standard output")

		requireSays("unmounted", "volume", "umount", name)
		requireSays("Node's part:  not ", "volume", "expand", name, "--size", "640Mi")
		requireSays("is mounted", "volume", "mount", name, path)
		require.Greater(t, sizeAt(t, path), before+256<<20, name)
		requireSays("unmounted", "volume", "umount", name)
	}
}

// TestExpandPrintsTheRemainingCommand: `volume expand` that could not grow the filesystem fails
// with the command that does.
func TestExpandPrintsTheRemainingCommand(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)
	path := filepath.Join(d.Config.KubeletDir, "mnt")

	requireSays("is mounted", "volume", "mount", "data", path, "--create", "--size", "320Mi", "--fs", "xfs")
	before := sizeAt(t, path)

	// It is still at its staging path.
	harness.Unmount(t, path)
	requireSays("Node's part:  done", "volume", "expand", "data", "--size", "448Mi")
	requireSays("again", "volume", "mount", "data", path)
	require.Greater(t, sizeAt(t, path), before+64<<20, "want: the filesystem has grown")

	// The directory beneath the staging is one of the host's filesystem.
	harness.Unmount(t, hiddenStaging(t, d))
	out, err := run("volume", "expand", "data", "--size", "576Mi")
	errtext.Require(t, err, "any more; stage it again")
	require.Contains(t, out, "Node's part:  failed")
	runRemedy(t, run, err)
	require.Greater(t, sizeAt(t, path), before+192<<20, "want: the filesystem has grown")

	d.Restart(t, harness.WithoutCapabilities("node:EXPAND_VOLUME"))
	_, err = run("volume", "expand", "data", "--size", "704Mi")
	runRemedy(t, run, err)
	require.Greater(t, sizeAt(t, path), before+320<<20, "want: the filesystem has grown")
	requireSays("unmounted", "volume", "umount", "data")
}

// TestExpandNamesTheNodesCommand: on the controller's socket, `volume expand` of a volume that a
// node uses fails with the command for the node's socket.
func TestExpandNamesTheNodesCommand(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	controller := harness.Start(t, harness.InMode(driver.ModeController))
	node := harness.Start(t, harness.InMode(driver.ModeNode), func(c *driver.Config) { c.Pools = controller.Config.Pools })
	onController, _ := commands(t, controller)
	onNode, _ := commands(t, node)

	request := harness.KindRequests(harness.Writer)["xfs"]
	request.CapacityRange = &csi.CapacityRange{RequiredBytes: 320 << 20}
	volume := harness.NewVolume(t, controller, request)
	require.NoError(t, controller.Attach(t.Context(), volume))

	claim := node.Claim(t, volume.VolumeID)
	claim.VolumeContext, claim.PublishContext, claim.Capability = volume.VolumeContext, volume.PublishContext, volume.Capability
	require.NoError(t, node.Stage(t.Context(), claim))
	require.NoError(t, node.Publish(t.Context(), claim))

	before := sizeAt(t, claim.TargetPath)
	_, err := onController("volume", "expand", claim.VolumeID, "--size", "448Mi")
	errtext.Require(t, err, "on "+node.Config.NodeID+" run touchstone ctl")
	runRemedy(t, onNode, err)
	require.Greater(t, sizeAt(t, claim.TargetPath), before+64<<20, "want: the filesystem has grown")

	require.NoError(t, node.Unpublish(t.Context(), claim))
	require.NoError(t, node.Unstage(t.Context(), claim))

	_, err = onNode("volume", "expand", claim.VolumeID, "--size", "512Mi")
	errtext.Require(t, err, "not in use on the node of this socket")
	require.NoError(t, controller.Detach(t.Context(), volume))
}
