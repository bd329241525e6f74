package harness

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
)

// MountOptions are those of the mount at the path, of the mount and of the filesystem.
func MountOptions(t *testing.T, path string) string {
	t.Helper()

	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)

	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); fields[4] == path {
			return fields[5] + " " + fields[len(fields)-1]
		}
	}

	require.Fail(t, "not mounted", path)

	return ""
}

// RequireUnstaged requires that a refused staging has left nothing behind.
func RequireUnstaged(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()
	RequireNothingMounted(t, d.Config.KubeletDir)
	// The kernel clears a device at its last close, which a forked child that has
	// not yet come to its exec may delay.
	require.Eventually(t, func() bool { return len(DevicesOf(t, d, claim.VolumeID)) == 0 }, time.Minute, time.Millisecond, "want: the unstaged volume has no device")

	scratch, err := os.ReadDir(filepath.Join(d.Pool(), "scratch"))
	require.NoError(t, err)
	require.Empty(t, scratch, "want: no scratch file is left")
}

// RunTool runs a tool, which may exit with codes up to the allowed one, and returns
// its output.
func RunTool(t *testing.T, allowed int, name string, arguments ...string) string {
	t.Helper()

	command := child.Command(t, name, arguments...)
	output, _ := command.CombinedOutput()
	require.LessOrEqual(t, command.ProcessState.ExitCode(), allowed, "%s %s: %s", name, strings.Join(arguments, " "), output)
	require.GreaterOrEqual(t, command.ProcessState.ExitCode(), 0, "want: the tool ends by itself")

	return string(output)
}

// GroupAndMode are those of a file, as a pod's processes see them.
func GroupAndMode(t *testing.T, path string) (group, mode uint32) {
	t.Helper()

	var stat unix.Stat_t

	require.NoError(t, unix.Lstat(path, &stat))

	return stat.Gid, stat.Mode & 0o7777
}

// RequireOwned requires a file's group and mode.
func RequireOwned(t *testing.T, path string, group, mode uint32) {
	t.Helper()

	gotGroup, gotMode := GroupAndMode(t, path)
	require.Equal(t, []uint32{group, mode}, []uint32{gotGroup, gotMode}, path)
}

// Unmount waits for the driver, which may just be probing what is mounted there.
func Unmount(t *testing.T, path string) {
	t.Helper()

	var err error

	require.Eventually(t, func() bool {
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)

		return !errors.Is(err, unix.EBUSY)
	}, await.Limit, time.Millisecond, "want: the mount is released")
	require.NoError(t, err)
}

// DevicesOf are the loop devices that have the volume's image.
func DevicesOf(t *testing.T, d *Driver, id string) []loop.Attachment {
	t.Helper()

	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	var own []loop.Attachment

	for _, each := range attached {
		if each.BackingPath == ImageOf(d, id) {
			own = append(own, each)
		}
	}

	return own
}

// ForeignDirectory is a directory that is not the driver's to touch.
func ForeignDirectory(t *testing.T) string {
	t.Helper()

	directory := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(directory, "sub", "mount"), 0o700))
	WriteFile(t, filepath.Join(directory, "sub", "file"), "not yours")
	WriteFile(t, filepath.Join(directory, "sub", "empty"), "")

	return directory
}

// RequireNothingMounted requires that there is no mount beneath the path.
func RequireNothingMounted(t *testing.T, beneath string) {
	t.Helper()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(beneath))
	require.NoError(t, err)
	require.Empty(t, mounts, "want: nothing is mounted")
}

// OwnStaging is where the driver stages volumes that are published without a staging.
func OwnStaging(d *Driver) string {
	return node.OwnStagingDir(d.Config.KubeletDir, d.Config.DriverName)
}

// RequireNothingStaged requires that OwnStaging is empty.
func RequireNothingStaged(t *testing.T, d *Driver) {
	t.Helper()

	if _, err := os.Stat(OwnStaging(d)); err == nil {
		left, err := os.ReadDir(OwnStaging(d))
		require.NoError(t, err)
		require.Empty(t, left, "want: nothing is staged")
	}
}
