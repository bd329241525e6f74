package cgroup_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const escapedUID = "4c1d0c9e_6b43_4b55_a1a4_1d2fa8a3e6b7"

func write(t *testing.T, content string, parts ...string) {
	t.Helper()

	path := filepath.Join(parts...)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func read(t *testing.T, parts ...string) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)

	return string(text)
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()

	for name, machine := range map[string]struct {
		files   map[string]string
		missing string
		offer   cgroup.Support
	}{
		"v1": {
			files: map[string]string{"blkio/blkio.throttle.read_bps_device": ""},
			offer: cgroup.Support{Version: 1, Directory: "blkio"},
		},
		"v2": {
			files: map[string]string{"cgroup.controllers": "cpuset cpu io memory\n"},
			offer: cgroup.Support{Version: 2},
		},
		"v2 with pods": {
			files: map[string]string{"cgroup.controllers": "io\n", "kubepods.slice/io.max": ""},
			offer: cgroup.Support{Version: 2, HasPods: true},
		},
		"hybrid, in v2": {
			files: map[string]string{"memory/tasks": "", "unified/cgroup.controllers": "io\n"},
			offer: cgroup.Support{Version: 2, Directory: "unified"},
		},
		"hybrid, in v1": {
			files: map[string]string{
				"blkio/blkio.throttle.read_bps_device": "", "unified/cgroup.controllers": "\n", "blkio/docker/a/kubepods/pods": "",
			},
			offer: cgroup.Support{Version: 1, Directory: "blkio", HasPods: true},
		},
		"nothing":        {missing: "neither"},
		"v2 without io":  {files: map[string]string{"cgroup.controllers": "cpu iocost\n"}, missing: "io controller"},
		"v1 without it":  {files: map[string]string{"blkio/tasks": ""}, missing: "CONFIG_BLK_DEV_THROTTLING"},
		"hybrid without": {files: map[string]string{"unified/cgroup.controllers": "cpu\n"}, missing: "neither"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			for path, content := range machine.files {
				write(t, content, root, path)
			}

			offer, err := newLimiter(t, root).Support()

			if machine.missing == "" {
				require.NoError(t, err)

				machine.offer.Directory = filepath.Join(root, machine.offer.Directory)
				require.Equal(t, machine.offer, offer)

				return
			}

			require.ErrorIs(t, err, cgroup.ErrUnsupported)
			errtext.Require(t, err, machine.missing)
		})
	}
}

// TestPodCgroupsAreFound by all the names that a kubelet gives.
func TestPodCgroupsAreFound(t *testing.T) {
	t.Parallel()

	device, limits := cgroup.Device{Major: 7, Minor: 5}, cgroup.Limits{ReadIOPS: 10}

	for _, path := range []string{
		"kubepods/burstable/pod" + podUID, "kubepods/besteffort/pod" + podUID, "kubepods/pod" + podUID,
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escapedUID + ".slice",
		"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + escapedUID + ".slice",
		"kubepods.slice/kubepods-pod" + escapedUID + ".slice",
		"kubelet/kubepods/burstable/pod" + podUID,
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + escapedUID + ".slice",
		"docker/0123/kubelet/kubepods/pod" + podUID,
	} {
		root := t.TempDir()
		write(t, "io\n", root, "cgroup.controllers")
		write(t, "", root, path, "io.max")
		write(t, "", root, "kubepods/pod0", "io.max")

		limiter := newLimiter(t, root)
		require.NoError(t, limiter.Set(podUID, device, limits), path)
		require.Equal(t, "7:5 rbps=max wbps=max riops=10 wiops=max", read(t, root, path, "io.max"), path)
		require.Empty(t, read(t, root, "kubepods/pod0/io.max"), "want: a cgroup that is not of the pod has no limit")
	}

	root := t.TempDir()
	write(t, "io\n", root, "cgroup.controllers")
	write(t, "", root, "kubepods/pod0", "io.max")
	write(t, "", root, "kubepods/burstable/pod"+podUID+"0", "io.max")

	for _, uid := range []string{podUID, "", "../kubepods/pod0", "0/../pod0"} {
		limiter := newLimiter(t, root)
		require.ErrorIs(t, limiter.Set(uid, device, limits), cgroup.ErrNoPod, uid)
		require.NoError(t, limiter.Remove(uid, device), "there is nothing to be removed")
	}
}

// TestSearchIsBounded on a machine with more cgroups than the limiter searches, and with a pod too
// far down.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()

	root := testpool.InMemory(t)
	write(t, "io\n", root, "cgroup.controllers")
	write(t, "", root, "1/2/3/4/5/6/pod"+podUID, "io.max")
	require.ErrorIs(t, newLimiter(t, root).Set(podUID, cgroup.Device{}, cgroup.Limits{ReadIOPS: 1}), cgroup.ErrNoPod)

	for i := range 4100 {
		require.NoError(t, os.Mkdir(filepath.Join(root, fmt.Sprint("many-", i)), 0o755))
	}

	err := newLimiter(t, root).Set(podUID, cgroup.Device{}, cgroup.Limits{ReadIOPS: 1})
	require.ErrorIs(t, err, cgroup.ErrNoPod)
	errtext.Require(t, err, "4096")
}

func TestVersion2RulesAreWritten(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	group := "kubepods/burstable/pod" + podUID
	write(t, "io\n", root, "cgroup.controllers")
	write(t, "7:6 rbps=1 wbps=max riops=max wiops=max\n7:5 rbps=max wbps=2 riops=max wiops=4\n", root, group, "io.max")

	limiter := newLimiter(t, root)
	device := cgroup.Device{Major: 7, Minor: 5}

	now, err := limiter.Get(podUID, device)
	require.NoError(t, err)
	require.Equal(t, cgroup.Limits{WriteBytesPerSecond: 2, WriteIOPS: 4}, now)

	wanted := cgroup.Limits{ReadBytesPerSecond: 1, WriteBytesPerSecond: 2, ReadIOPS: 3}
	require.NoError(t, limiter.Set(podUID, device, wanted))
	require.Equal(t, "7:5 rbps=1 wbps=2 riops=3 wiops=max", read(t, root, group, "io.max"))

	require.NoError(t, limiter.Remove(podUID, device))
	require.Equal(t, "7:5 rbps=max wbps=max riops=max wiops=max", read(t, root, group, "io.max"))

	require.NoError(t, os.Remove(filepath.Join(root, group, "io.max")))
	err = limiter.Set(podUID, device, wanted)
	require.ErrorIs(t, err, cgroup.ErrUnsupported)
	errtext.Require(t, err, "cgroup.subtree_control")
	require.NoError(t, limiter.Remove(podUID, device))
}

func TestLimitsAreInForce(t *testing.T) {
	device := newLoop(t)
	root, base := newBlkio(t)
	pod := makeCgroup(t, base, "kubepods/burstable/pod"+podUID)
	limiter := newLimiter(t, root)

	const (
		operation  = 64 * kibibyte
		bytesLimit = mebibyte
		iopsLimit  = 20
		inBytes    = float64(bytesLimit) / operation
	)

	for _, row := range []struct {
		name, operation string
		limits          cgroup.Limits
		limit           float64
	}{
		{"read bytes", "read", cgroup.Limits{ReadBytesPerSecond: bytesLimit}, inBytes},
		{"write bytes", "write", cgroup.Limits{WriteBytesPerSecond: bytesLimit}, inBytes},
		{"read operations", "read", cgroup.Limits{ReadIOPS: iopsLimit}, iopsLimit},
		{"write operations", "write", cgroup.Limits{WriteIOPS: iopsLimit}, iopsLimit},
	} {
		t.Run(row.name, func(t *testing.T) {
			process := newWorker(t, pod, device.Path, row.operation, operation)
			process.free(row.limit)

			require.NoError(t, limiter.Set(podUID, numbers(device), row.limits))

			now, err := limiter.Get(podUID, numbers(device))
			require.NoError(t, err)
			require.Equal(t, row.limits, now)
			process.limited(row.limit)

			require.NoError(t, limiter.Set(podUID, numbers(device), cgroup.Limits{}))
			process.free(row.limit)
		})
	}
}

// TestContainersAreLimited: version 1 rules a cgroup alone and not its
// children, and it is in these that the processes of a pod are.
func TestContainersAreLimited(t *testing.T) {
	device := newLoop(t)
	root, base := newBlkio(t)
	pod := makeCgroup(t, base, "kubepods/pod"+podUID)
	early := makeCgroup(t, pod, "early")
	limiter := newLimiter(t, root)
	limits := cgroup.Limits{ReadIOPS: 20}
	rule := fmt.Sprintf("%s %d\n", numbers(device), limits.ReadIOPS)

	require.NoError(t, limiter.Set(podUID, numbers(device), limits))
	require.Equal(t, rule, read(t, early, "blkio.throttle.read_iops_device"))

	late := makeCgroup(t, pod, "late/inner")
	for _, cgroup := range []string{filepath.Dir(late), late} {
		require.Eventually(t, func() bool { return read(t, cgroup, "blkio.throttle.read_iops_device") == rule },
			10*time.Second, time.Millisecond, "want: a cgroup that is made later gets the limit")
	}

	newWorker(t, late, device.Path, "read", 4*kibibyte).limited(20)

	require.NoError(t, limiter.Remove(podUID, numbers(device)))

	for _, cgroup := range []string{pod, early, filepath.Dir(late), late} {
		require.Empty(t, read(t, cgroup, "blkio.throttle.read_iops_device"), "want: each cgroup of the pod loses the limit")
	}
}

// TestRulesOutliveTheLimiter: another one, as after a restart, takes them away.
func TestRulesOutliveTheLimiter(t *testing.T) {
	device := newLoop(t)
	root, base := newBlkio(t)
	container := makeCgroup(t, base, "kubepods/pod"+podUID, "container")

	first := cgroup.NewLimiter(root, quiet())
	require.NoError(t, first.Set(podUID, numbers(device), cgroup.Limits{WriteIOPS: 5, ReadBytesPerSecond: 4096}))
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	require.NotEmpty(t, read(t, container, "blkio.throttle.write_iops_device"), "want: the limit stays when the limiter is closed")

	second := newLimiter(t, root)
	require.NoError(t, second.Remove(podUID, numbers(device)))
	require.NoError(t, second.Remove(podUID, numbers(device)))
	require.Empty(t, read(t, container, "blkio.throttle.write_iops_device"), "want: the limit of writes is removed")
	require.Empty(t, read(t, container, "blkio.throttle.read_bps_device"), "want: the limit of bytes is removed")
}

// TestFailedLimitsAreUndone: the kernel does not know the device, or the last limit can't be set.
func TestFailedLimitsAreUndone(t *testing.T) {
	device := newLoop(t)
	root, base := newBlkio(t)
	pod := makeCgroup(t, base, "kubepods/pod"+podUID)
	limiter := newLimiter(t, root)

	require.Error(t, limiter.Set(podUID, cgroup.Device{Major: 7, Minor: 1<<20 - 1}, cgroup.Limits{ReadIOPS: 1}), "Set for a device that is not there")

	before := cgroup.Limits{ReadIOPS: 20, WriteIOPS: 30}
	require.NoError(t, limiter.Set(podUID, numbers(device), before))

	// A limit below zero is what the kernel refuses, after it has taken the
	// others.
	require.Error(t, limiter.Set(podUID, numbers(device), cgroup.Limits{ReadBytesPerSecond: 8192, ReadIOPS: 40, WriteIOPS: -1}),
		"Set with a negative limit")

	now, err := limiter.Get(podUID, numbers(device))
	require.NoError(t, err)
	require.Equal(t, before, now)

	// What comes now gets what holds, not what failed.
	container := makeCgroup(t, pod, "container")

	require.Eventually(t, func() bool {
		return strings.HasSuffix(read(t, container, "blkio.throttle.write_iops_device"), " 30\n")
	}, 10*time.Second, time.Millisecond, "want: a later cgroup gets the limit that holds")
	require.Empty(t, read(t, container, "blkio.throttle.read_bps_device"), "want: the limit that failed is not applied")
}

// TestManyPodsAtOnce is for the race detector.
func TestManyPodsAtOnce(t *testing.T) {
	device := newLoop(t)
	root, base := newBlkio(t)
	limiter := newLimiter(t, root)

	var callers sync.WaitGroup

	for i := range 8 {
		uid := fmt.Sprint("many-", i/2)
		pod := makeCgroup(t, base, "kubepods/pod"+uid)

		callers.Go(func() {
			for round := range 20 {
				require.NoError(t, limiter.Set(uid, numbers(device), cgroup.Limits{ReadIOPS: int64(round + 1)}))
				require.NoError(t, os.MkdirAll(filepath.Join(pod, fmt.Sprint(i, "-", round)), 0o755))
				require.NoError(t, limiter.Remove(uid, numbers(device)))
			}
		})
	}

	await.Return(t, callers.Wait, "all callers to have their answers")

	for i := range 4 {
		now, err := limiter.Get(fmt.Sprint("many-", i), numbers(device))
		require.NoError(t, err)
		require.Zero(t, now, "want: no limit is left")
	}
}
