package syscallfault

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevicesOfOthersDoNotFail knows a loop device by its name, in /dev and sysfs.
func TestDevicesOfOthersDoNotFail(t *testing.T) {
	t.Parallel()

	backingFile := func(loop string) string {
		return map[string]string{"loop1": "/test/1/pool.img", "loop12": "/test/12/pool.img"}[loop]
	}

	for path, want := range map[string]bool{
		"/dev/loop12": false, "/dev/loop1": true, "/dev/loop3": false, "/dev/loop-control": false,
		"/sys/block/loop12/loop/backing_file": false, "/sys/devices/virtual/block/loop1/ro": true,
		"/sys/block": false, "/proc/self/mountinfo": false,
	} {
		require.Equal(t, want, isOther(path, "/test/12", backingFile), path)
	}
}

// TestOutside is about mounts, their tables and loop devices alone, whatever their numbers are.
func TestOutside(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/proc/self/mountinfo": "mountinfo", "/proc/12/mounts": "mountinfo", "/proc/self/task/1/mounts": "", "/etc/mounts": "",
		"/dev/loop12": "/dev/loopN", "/sys/block/loop1/ro": "/sys/block/loopN/ro", "/sys/fs/ext4/loop1/errors_count": "/sys/fs/extN/loopN/errors_count",
		"/dev": "/dev", "/dev/null": "", "/devices": "", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "", "/sys/fs/cgroup/cpu.max": "", "": "",
	} {
		require.Equal(t, want, Outside(&Call{Name: "openat", Path: path}), path)
	}

	require.Equal(t, "ext4-", Outside(&Call{Name: "fsopen", Path: "ext4"}))
	require.Equal(t, "-", Outside(&Call{Name: "fsmount", Path: "/a"}))
}
