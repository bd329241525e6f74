package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
)

// RequireSound requires that the filesystem in the file or device, which is not mounted, has no
// damage. Where btrfs-progs are older than a feature of the filesystem, the kernel verifies all
// checksums instead.
func RequireSound(tb testing.TB, fsType, path string) {
	tb.Helper()

	tool, known := map[string][]string{
		"ext4": {"e2fsck", "-fn"}, "xfs": {"xfs_repair", "-n", "-f"}, "btrfs": {"btrfs", "check", "--readonly"},
	}[fsType]
	require.True(tb, known, fsType)

	output, err := child.Command(tb, tool[0], append(tool[1:], path)...).CombinedOutput()
	if err == nil {
		return
	}

	require.Contains(tb, string(output), "unsupported option features", "%s finds damage", tool[0])

	directory := tb.TempDir()
	requireRun(tb, "mount", "-o", "loop", path, directory)

	defer func() { require.NoError(tb, unix.Unmount(directory, 0)) }()

	require.Contains(tb, requireRun(tb, "btrfs", "scrub", "start", "-B", "-r", directory), "no errors found")
}

func requireRun(tb testing.TB, name string, args ...string) string {
	tb.Helper()

	output, err := child.Command(tb, name, args...).CombinedOutput()
	require.NoError(tb, err, "%s: %s", name, output)

	return string(output)
}
