package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/test/child"
)

// Pods are cgroups as a kubelet makes them, in a corner of the machine's own
// tree in which no kubelet looks.
type Pods struct {
	// Root is the driver's --cgroup-root.
	Root string

	base string
}

// NewPods returns an empty tree, or skips the test where cgroups can't limit
// block devices.
func NewPods(tb testing.TB) *Pods {
	tb.Helper()

	blkio := filepath.Join(cgroup.DefaultCgroupRoot, "blkio")
	if _, err := os.Stat(filepath.Join(blkio, "blkio.throttle.read_bps_device")); err != nil {
		tb.Skipf("no cgroup v1 blkio here: %v", err)
	}

	base, err := os.MkdirTemp(blkio, "touchstone-test-") //nolint:usetesting // only there are cgroups made
	require.NoError(tb, err)
	tb.Cleanup(func() { removeCgroups(tb, base) })

	root := tb.TempDir()
	require.NoError(tb, os.Symlink(base, filepath.Join(root, "blkio")))

	return &Pods{Root: root, base: base}
}

// Container makes the pod's cgroup and one in it, and returns the latter.
func (p *Pods) Container(tb testing.TB, uid, name string) string {
	tb.Helper()

	path := filepath.Join(p.base, "kubepods", "burstable", "pod"+uid, name)
	require.NoError(tb, os.MkdirAll(path, 0o750))

	return path
}

// End removes the cgroups of a pod, as the kubelet does once nothing runs in
// them.
func (p *Pods) End(tb testing.TB, uid string) {
	tb.Helper()
	removeCgroups(tb, filepath.Join(p.base, "kubepods", "burstable", "pod"+uid))
}

// Read has a process in the cgroup read so many bytes without the page cache,
// and returns how long that took.
func (p *Pods) Read(tb testing.TB, cgroup, path string, bytes int64) time.Duration {
	tb.Helper()

	const block = 65536

	const script = `echo $$ > "$1/cgroup.procs" && exec dd if="$2" of=/dev/null bs=65536 count="$3" iflag=direct status=none`

	began := time.Now()
	output, err := child.Command(tb, "sh", "-c", script, "sh", cgroup, path, strconv.FormatInt(bytes/block, 10)).CombinedOutput()
	require.NoError(tb, err, "%s", output)

	return time.Since(began)
}

// removeCgroups takes the innermost first; the files in them are the kernel's.
func removeCgroups(tb testing.TB, top string) {
	tb.Helper()

	entries, err := os.ReadDir(top)
	require.NoError(tb, err)

	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroups(tb, filepath.Join(top, entry.Name()))
		}
	}

	require.NoError(tb, unix.Rmdir(top))
}
