package doctor_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestThisKernelPasses(t *testing.T) {
	namespace.NeedRoot(t)

	c := machine(t)
	finds(t, look(t, c, "kernel", ""), doctor.OK, "Linux ")
	finds(t, look(t, c, "mounting", ""), doctor.OK, "mount_setattr")
	finds(t, look(t, c, "events", "mounts"), doctor.OK)
	finds(t, look(t, c, "filesystem", "ext4"), doctor.OK)
	finds(t, look(t, c, "loop-devices", ""), doctor.OK, "images are attached")
	require.NotEqual(t, doctor.Problem, look(t, c, "privileges", "").Verdict, "want: root has the privileges")

	c.HealthPolling = true
	finds(t, look(t, c, "events", "mounts"), doctor.Skipped, "--health-events=false")
}

func TestControllerSkipsTheNodesChecks(t *testing.T) {
	c := machine(t)
	c.Mode = doctor.ModeController

	for _, each := range doctor.Examine(t.Context(), c).Findings {
		switch each.Check {
		case "pool", "pool-space", "pool-directories", "state", "clock":
			require.Equal(t, doctor.OK, each.Verdict, "%+v", each)
		case "pool-reflink": // as it happens
		case "socket":
			require.Equal(t, doctor.Problem, each.Verdict, "%+v", each)
		default:
			require.Equal(t, doctor.Skipped, each.Verdict, "%+v", each)
		}
	}
}

// Not parallel: other tests that make an XFS at the same time would fail.
func TestMissingToolIsReported(t *testing.T) {
	path, err := filesystem.Tool{Name: "xfs_repair"}.Find()
	require.NoError(t, err)

	c := machine(t)
	finds(t, look(t, c, "tools", "xfs"), doctor.OK, "xfs_repair")

	// It is not executable any more, and so not found.
	mountAt(t, "/dev/null", path, "", unix.MS_BIND, "")

	found := look(t, c, "tools", "xfs")
	finds(t, found, doctor.Warning, "xfs_repair")
	require.NotContains(t, found.Seen, "mkfs.xfs")
	require.Contains(t, found.Cure, "xfsprogs")
	finds(t, look(t, c, "tools", "ext4"), doctor.OK)

	c.PoolImageBytes = 1 << 30
	finds(t, look(t, c, "tools", "xfs"), doctor.Problem, "xfs_repair")
}

func TestStateIsChecked(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "state", ""), doctor.OK, c.StateDir, "on disk after")
	require.Empty(t, names(t, c.StateDir), "want: the state directory is empty again")

	missing := c
	missing.StateDir = filepath.Join(c.StateDir, "none")
	finds(t, look(t, missing, "state", ""), doctor.Warning, "none")

	file := c
	file.StateDir = filepath.Join(c.StateDir, "file")
	require.NoError(t, os.WriteFile(file.StateDir, nil, 0o600))
	finds(t, look(t, file, "state", ""), doctor.Problem, "file")

	t.Run("in memory, read-only, full", func(t *testing.T) {
		mountAt(t, "scratch", c.StateDir, "tmpfs", 0, "size=64k")
		finds(t, look(t, c, "state", ""), doctor.Warning, "in memory")

		require.NoError(t, unix.Mount("", c.StateDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		finds(t, look(t, c, "state", ""), doctor.Problem, "read-only")
	})
	t.Run("of a container", func(t *testing.T) {
		lower, upper := t.TempDir(), t.TempDir()
		work := filepath.Join(filepath.Dir(upper), "work")
		require.NoError(t, os.Mkdir(work, 0o700))
		mountAt(t, "overlay", c.StateDir, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work)
		finds(t, look(t, c, "state", ""), doctor.Problem, "container")
	})
	t.Run("nearly full", func(t *testing.T) {
		namespace.NeedRoot(t)

		c.StateDir = testpool.Plain(t, 1<<30)
		finds(t, look(t, c, "state", ""), doctor.OK, "ext4")

		taken := filepath.Join(c.StateDir, "taken")
		require.NoError(t, os.WriteFile(taken, nil, 0o600))
		fill(t, taken, 900<<20)
		finds(t, look(t, c, "state", ""), doctor.Warning, "available")
	})
}

func names(t *testing.T, directory string) []string {
	t.Helper()

	var found []string

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)

	for _, entry := range entries {
		found = append(found, entry.Name())
	}

	return found
}

func TestClockIsChecked(t *testing.T) {
	c := machine(t)
	c.Built = time.Now().Add(-time.Hour)
	finds(t, look(t, c, "clock", ""), doctor.OK, time.Now().UTC().Format("2006-"))

	journal := filepath.Join(c.StateDir, "state.jsonl")
	require.NoError(t, os.WriteFile(journal, nil, 0o600))
	finds(t, look(t, c, "clock", ""), doctor.OK)

	tomorrow := time.Now().Add(24 * time.Hour)
	require.NoError(t, os.Chtimes(journal, tomorrow, tomorrow))
	finds(t, look(t, c, "clock", ""), doctor.Problem, "set back", tomorrow.UTC().Format("2006-01-02"))

	require.NoError(t, os.Remove(journal))

	c.Built = tomorrow
	finds(t, look(t, c, "clock", ""), doctor.Problem, "built "+tomorrow.UTC().Format("2006-01-02"))
}

// TestKubeletPropagationIsChecked for mountPropagation None, HostToContainer and Bidirectional.
func TestKubeletPropagationIsChecked(t *testing.T) {
	c := machine(t)
	mountAt(t, c.KubeletDir, c.KubeletDir, "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", c.KubeletDir, "", unix.MS_PRIVATE, ""))
	finds(t, look(t, c, "kubelet", ""), doctor.Warning, "private propagation", "no kubelet")

	require.NoError(t, os.Mkdir(filepath.Join(c.KubeletDir, "pods"), 0o700))

	found := look(t, c, "kubelet", "")
	finds(t, found, doctor.Problem, "private propagation")
	require.Contains(t, found.Cure, "Bidirectional")
	require.Contains(t, found.Cure, "make-rshared")

	require.NoError(t, unix.Mount("", c.KubeletDir, "", unix.MS_SHARED, ""))
	finds(t, look(t, c, "kubelet", ""), doctor.OK, "shared")

	pod := c
	pod.KubeletDir = t.TempDir()
	mountAt(t, c.KubeletDir, pod.KubeletDir, "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", pod.KubeletDir, "", unix.MS_SLAVE, ""))
	finds(t, look(t, pod, "kubelet", ""), doctor.Problem, "HostToContainer")

	require.NoError(t, unix.Mount("", c.KubeletDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	finds(t, look(t, c, "kubelet", ""), doctor.Problem, "read-only")

	c.KubeletDir = filepath.Join(c.StateDir, "none")
	finds(t, look(t, c, "kubelet", ""), doctor.OK, "no kubelet is here")

	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	finds(t, look(t, c, "kubelet", ""), doctor.Problem, "none")
}

func TestQueuesAreChecked(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "queues", ""), doctor.OK, "/sys/block")

	mountAt(t, "/sys", "/sys", "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	finds(t, look(t, c, "queues", ""), doctor.Warning, "read-only")
}

func TestCgroupsAreChecked(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "cgroups", ""), doctor.OK, "cgroup v2", c.CgroupRoot)

	require.NoError(t, os.Mkdir(filepath.Join(c.KubeletDir, "pods"), 0o700))
	finds(t, look(t, c, "cgroups", ""), doctor.Warning, "no pods")

	require.NoError(t, os.Mkdir(filepath.Join(c.CgroupRoot, "kubepods.slice"), 0o700))
	finds(t, look(t, c, "cgroups", ""), doctor.OK)

	t.Run("read-only", func(t *testing.T) {
		mountAt(t, c.CgroupRoot, c.CgroupRoot, "", unix.MS_BIND, "")
		require.NoError(t, unix.Mount("", c.CgroupRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		finds(t, look(t, c, "cgroups", ""), doctor.Warning, "read-only")
	})

	require.NoError(t, os.WriteFile(filepath.Join(c.CgroupRoot, "cgroup.controllers"), []byte("cpu\n"), 0o600))
	finds(t, look(t, c, "cgroups", ""), doctor.Warning, "io controller")
}

func TestDirectVolumesAreChecked(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "direct-volumes", ""), doctor.OK, "is created")

	require.NoError(t, os.Mkdir(c.DirectVolumeRoot, 0o700))
	finds(t, look(t, c, "direct-volumes", ""), doctor.OK, "0 assignments")

	require.NoError(t, os.Chmod(c.DirectVolumeRoot, 0o777))
	finds(t, look(t, c, "direct-volumes", ""), doctor.Problem, "chmod go-w")

	require.NoError(t, os.Remove(c.DirectVolumeRoot))
	require.NoError(t, os.Symlink(c.StateDir, c.DirectVolumeRoot))
	finds(t, look(t, c, "direct-volumes", ""), doctor.Problem, "symlink")

	require.NoError(t, os.Remove(c.DirectVolumeRoot))

	c.KataRuntime = filepath.Join(c.StateDir, "kata-runtime")
	finds(t, look(t, c, "direct-volumes", ""), doctor.Problem, "kata-runtime")
}
