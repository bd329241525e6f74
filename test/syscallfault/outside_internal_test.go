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
