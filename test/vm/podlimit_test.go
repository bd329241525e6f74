package vm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
)

const podUID = "0d3f4a52-7f3e-4f0c-9a51-6d0e2f6b1c11"

// limitedFor is the time for which each limit delays the I/O that is done with it. The kernel may let
// the first second's pass at once, so that is not in it.
const limitedFor = 2 * time.Second

// TestPodLimits has limits of volumes in force, by the io controller of cgroup v2: what a process of
// the pod reads and writes takes as long as they require.
func TestPodLimits(t *testing.T) {
	const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	for name, capability := range map[string]*csi.VolumeCapability{
		"mount": csiclient.MountCapability(writer, "ext4"), "block": csiclient.BlockCapability(writer),
	} {
		t.Run(name, func(t *testing.T) {
			inMachine(t)

			d, p := startDriver(t, mountDisk(t, "xfs")), makePod(t)
			created, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "limited", CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib},
				VolumeCapabilities: []*csi.VolumeCapability{capability},
				MutableParameters:  map[string]string{"writeBytesPerSecond": "1048576", "readIOPS": "10"},
			})
			require.NoError(t, err)

			v := &csiclient.Publication{
				VolumeID: created.GetVolume().GetVolumeId(), VolumeContext: created.GetVolume().GetVolumeContext(),
				Capability: capability, NodeID: nodeID,
				StagingPath: filepath.Join(d.kubelet(), "plugins", "staging"),
				TargetPath:  filepath.Join(d.kubelet(), "pods", podUID, "volumes", "kubernetes.io~csi", "limited", "mount"),
			}
			if capability.GetBlock() != nil {
				v.TargetPath = filepath.Join(d.kubelet(), "plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "limited", podUID)
			}

			require.NoError(t, os.MkdirAll(filepath.Dir(v.TargetPath), directoryMode))
			require.NoError(t, d.Attach(t.Context(), v))
			require.NoError(t, d.Stage(t.Context(), v))
			require.NoError(t, d.Publish(t.Context(), v))

			data := v.TargetPath
			if capability.GetMount() != nil {
				data = filepath.Join(v.TargetPath, "data")
			}

			p.requireRule(t, "rbps=max wbps=1048576 riops=10 wiops=max")
			p.requireDelayed(t, data, "pwrite -b 1m 0 3m")
			p.requireDelayed(t, data, "pread -b 4k 0 120k")

			d.modify(t, v, map[string]string{"writeBytesPerSecond": "2097152", "readIOPS": "0"})
			p.requireRule(t, "rbps=max wbps=2097152 riops=max wiops=max")
			p.requireDelayed(t, data, "pwrite -b 1m 0 6m")

			d.restartKilled(t)
			p.requireRule(t, "rbps=max wbps=2097152 riops=max wiops=max")

			d.modify(t, v, map[string]string{"writeBytesPerSecond": "0"})
			p.requireRule(t, "")
			p.awaitFree(t, data, "pwrite -b 1m 0 3m")

			d.modify(t, v, map[string]string{"writeIOPS": "10"})
			p.requireRule(t, "rbps=max wbps=max riops=max wiops=10")
			p.requireDelayed(t, data, "pwrite -b 4k 0 120k")

			require.NoError(t, d.Unpublish(t.Context(), v))
			p.requireRule(t, "")
			require.NoError(t, d.Unstage(t.Context(), v))
			require.NoError(t, d.Detach(t.Context(), v))

			_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.VolumeID})
			require.NoError(t, err)
		})
	}
}

func (d *driver) modify(t *testing.T, v *csiclient.Publication, parameters map[string]string) {
	t.Helper()

	_, err := d.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
		VolumeId: v.VolumeID, MutableParameters: parameters,
	})
	require.NoError(t, err)
}

// pod is the cgroup of a pod as a kubelet makes it, with a container's in it.
type pod struct{ path string }

func makePod(t *testing.T) pod {
	t.Helper()

	path := cgroup.DefaultCgroupRoot

	for _, name := range []string{"kubepods", "burstable", "pod" + podUID} {
		require.NoError(t, os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+io"), fileMode))

		path = makeCgroup(t, path, name)
	}

	makeCgroup(t, path, "container")

	return pod{path}
}

func makeCgroup(t *testing.T, parent, name string) string {
	t.Helper()

	path := filepath.Join(parent, name)
	require.NoError(t, os.Mkdir(path, directoryMode))
	t.Cleanup(func() { require.NoError(t, os.Remove(path), "a process is left in the cgroup") })

	return path
}

// requireRule awaits the rule of the pod for the one loop device that is in use, empty for none.
func (p pod) requireRule(t *testing.T, rule string) {
	t.Helper()

	attached, err := filepath.Glob(attachedLoops)
	require.NoError(t, err)
	require.Len(t, attached, 1, "the loop devices in use")

	device, err := os.ReadFile(filepath.Join(filepath.Dir(attached[0]), "dev"))
	require.NoError(t, err)

	want := ""
	if rule != "" {
		want = strings.TrimSpace(string(device)) + " " + rule
	}

	require.EventuallyWithT(t, func(attempt *assert.CollectT) {
		text, err := os.ReadFile(filepath.Join(p.path, "io.max"))
		require.NoError(attempt, err)
		require.Equal(attempt, want, strings.TrimSpace(string(text)))
	}, waitLimit, 10*time.Millisecond, "io.max of the pod")
}

// requireDelayed fails if the I/O of a process in the pod takes less time than its limit allows.
func (p pod) requireDelayed(t *testing.T, path, command string) {
	t.Helper()
	require.GreaterOrEqual(t, p.measure(t, path, command), limitedFor, "%s is not limited", command)
}

// awaitFree repeats the I/O until it takes less time than with a limit.
func (p pod) awaitFree(t *testing.T, path, command string) {
	t.Helper()

	for deadline := time.Now().Add(waitLimit); p.measure(t, path, command) >= limitedFor; {
		require.True(t, time.Now().Before(deadline), "%s is still limited", command)
	}
}

// measure returns how long a process in the pod takes for I/O without the page cache.
func (p pod) measure(t *testing.T, path, command string) time.Duration {
	t.Helper()

	const script = `echo $$ > "$1/container/cgroup.procs" && exec xfs_io -f -d -c "$2" "$3"`

	began := time.Now()
	run(t, "sh", "-c", script, "sh", p.path, command, path)

	return time.Since(began)
}
