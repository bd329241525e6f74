package sanity_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	program    = "/hostpathplugin"
	kubeletDir = "/var/lib/kubelet"
	content    = "of the pod"
	writer     = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

// plugin are the arguments of the container hostpath in csi-driver-host-path's deploy/kubernetes-1.34 and -test,
// which 1.35 and latest are links to, with the values of the variables.
var plugin = []string{"--drivername=hostpath.csi.k8s.io", "--v=5", "--endpoint=unix:///csi/csi.sock", "--nodeid=node1"}

// e2e are those that Kubernetes' test/e2e/storage/drivers/csi.go adds to them.
func e2e(driver string) []string {
	return append(slices.Clone(plugin), "--drivername="+driver, "--maxvolumespernode=10", "--check-volume-lifecycle=true",
		"--enable-controller-modify-volume=true", "--accepted-mutable-parameter-names=e2eVacTest")
}

// pod is a pod with the program hostpathplugin on a host: directories that stand for the host's are mounted
// where the manifests of csi-driver-host-path and of Kubernetes' tests mount the host's.
type pod struct {
	args []string
	// host has the directories data, and plugins and pods of the kubelet. root is the container's.
	host, root string
	command    *exec.Cmd
	log        *logs.Buffer
	client     *csiclient.Client
}

// newPod makes a pod with the built program that uses the directory data of the host. Its mounts are seen on the host unless it is apart,
// without mountPropagation.
func newPod(t *testing.T, built, data string, apart bool, args ...string) *pod {
	t.Helper()

	var err error

	p := &pod{args: args, host: t.TempDir()}
	p.root, err = os.MkdirTemp("", "pod") //nolint:usetesting // t.TempDir is removed with all below it, such as the machine's devices
	require.NoError(t, err)
	require.NoError(t, unix.Mount("none", p.root, "tmpfs", 0, ""))
	t.Cleanup(func() {
		require.NoError(t, unix.Unmount(p.root, unix.MNT_DETACH))
		require.NoError(t, os.Remove(p.root))
	})

	for _, directory := range []string{"plugins", "pods"} {
		shared := filepath.Join(p.host, directory)
		require.NoError(t, os.Mkdir(shared, 0o755))
		require.NoError(t, unix.Mount(shared, shared, "", unix.MS_BIND, ""))
		require.NoError(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(shared, unix.MNT_DETACH)) })
		p.mount(t, shared, filepath.Join(kubeletDir, directory), unix.MS_BIND)

		if apart {
			require.NoError(t, unix.Mount("", filepath.Join(p.root, kubeletDir, directory), "", unix.MS_PRIVATE, ""))
		}
	}

	require.NoError(t, os.Mkdir(filepath.Join(p.host, "plugins", "csi-hostpath"), 0o755))
	p.mount(t, filepath.Join(p.host, "plugins", "csi-hostpath"), "/csi", unix.MS_BIND)
	p.mount(t, data, "/csi-data-dir", unix.MS_BIND)
	p.mount(t, "/dev", "/dev", unix.MS_BIND)
	p.mount(t, "/sys", "/sys", unix.MS_BIND|unix.MS_REC)
	p.mount(t, "/proc", "/proc", unix.MS_BIND|unix.MS_REC)
	require.NoError(t, os.Mkdir(filepath.Join(p.root, "tmp"), 0o1777))
	require.NoError(t, os.WriteFile(filepath.Join(p.root, program), nil, 0o755))
	require.NoError(t, unix.Mount(built, filepath.Join(p.root, program), "", unix.MS_BIND, ""))

	return p
}

// mount mounts a directory at a path of the container.
func (p *pod) mount(t *testing.T, from, at string, flags uintptr) {
	t.Helper()

	at = filepath.Join(p.root, at)
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, unix.Mount(from, at, "", flags, ""))
}

// start starts the container and connects to its driver.
func (p *pod) start(t *testing.T) {
	t.Helper()

	p.log = &logs.Buffer{}
	p.command = child.Command(t, program, p.args...)
	p.command.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root}
	p.command.Dir, p.command.Stderr = "/", p.log
	p.command.Env = append(os.Environ(), "CSI_ENDPOINT=unix:///csi/csi.sock", "TOUCHSTONE_STRICT=observe")
	require.NoError(t, child.Start(p.command))

	var err error

	p.client, err = csiclient.Connect("unix://"+filepath.Join(p.root, "csi", "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.client.Close() })
	require.NoError(t, p.client.WaitReady(t.Context()), p.log)
}

// kill sends SIGKILL and starts the container again, as the kubelet does.
func (p *pod) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.command.Process.Kill())
	require.Error(t, child.Wait(t, p.command), "want: the process is killed")
	p.start(t)
}

// end sends SIGTERM; the last line of the log is the verdict then.
func (p *pod) end(t *testing.T) {
	t.Helper()
	require.NoError(t, p.command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, child.Wait(t, p.command), p.log)
	require.Regexp(t, `msg="verdict on the CO: no call violates the CSI spec"\n$`, p.log.String())
}

// use creates a volume, publishes it as a kubelet does, calls within, and removes it. found is where the host sees
// the volume.
func (p *pod) use(t *testing.T, request *csi.CreateVolumeRequest, within func(id, found string)) {
	t.Helper()

	capability := request.GetVolumeCapabilities()[0]
	made, err := p.client.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	id, context := made.GetVolume().GetVolumeId(), made.GetVolume().GetVolumeContext()
	staging, target := "plugins/kubernetes.io/csi/"+id+"/globalmount", "pods/uid/volumes/kubernetes.io~csi/"+id+"/mount"
	require.NoError(t, os.MkdirAll(filepath.Join(p.host, staging), 0o750))
	require.NoError(t, os.MkdirAll(filepath.Join(p.host, filepath.Dir(target)), 0o750))

	caps, err := p.client.Capabilities(t.Context())
	require.NoError(t, err)

	var attached *csi.ControllerPublishVolumeResponse

	attaches := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	if attaches {
		attached, err = p.client.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: id, NodeId: "node1", VolumeCapability: capability, VolumeContext: context,
		})
		require.NoError(t, err)
	}

	_, err = p.client.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(kubeletDir, staging), VolumeCapability: capability, VolumeContext: context,
		PublishContext: attached.GetPublishContext(),
	})
	require.NoError(t, err)

	_, err = p.client.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(kubeletDir, staging), TargetPath: filepath.Join(kubeletDir, target),
		VolumeCapability: capability, VolumeContext: context, PublishContext: attached.GetPublishContext(),
	})
	require.NoError(t, err)

	within(id, filepath.Join(p.host, target))

	_, err = p.client.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: filepath.Join(kubeletDir, target)})
	require.NoError(t, err)

	_, err = os.Lstat(filepath.Join(p.host, target))
	require.ErrorIs(t, err, fs.ErrNotExist, "want: the target path is removed on the host")

	_, err = p.client.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(kubeletDir, staging)})
	require.NoError(t, err)

	if attaches {
		_, err = p.client.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node1"})
		require.NoError(t, err)
	}

	_, err = p.client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.NoError(t, err)
}

// mounted is a request for a volume as csi-provisioner makes it with --default-fstype=ext4, and raw one for a block volume.
func mounted(name string, parameters map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: mib},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "ext4")},
	}
}

func raw(name string, parameters map[string]string) *csi.CreateVolumeRequest {
	request := mounted(name, parameters)
	request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.BlockCapability(writer)}

	return request
}

// useBoth uses a mounted and a block volume, and kills the driver while they are published.
func (p *pod) useBoth(t *testing.T, name string, parameters map[string]string) {
	t.Helper()
	p.use(t, mounted(name, parameters), func(_, path string) {
		require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte(content), 0o600))
		p.use(t, raw(name+"-raw", parameters), func(_, device string) {
			require.NoError(t, os.WriteFile(device, []byte(content), 0))
			p.kill(t)
			require.Equal(t, content, readStart(t, filepath.Join(path, "file")))
			require.Equal(t, content, readStart(t, device))
		})
	})
}

func readStart(t *testing.T, path string) string {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	read := make([]byte, len(content))
	_, err = file.Read(read)
	require.NoError(t, err)

	return string(read)
}

// requireEmpty waits for nothing: a driver that has ended has removed its own directory.
func requireEmpty(t *testing.T, directory string) {
	t.Helper()

	left, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Empty(t, left, "want: nothing of the drivers is left")
}

// modify gives a volume the parameter of Kubernetes' tests of VolumeAttributesClasses, which the driver does not know.
func modify(t *testing.T, p *pod, id string) {
	t.Helper()

	const name = "e2eVacTest"

	_, err := p.client.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: map[string]string{name: "test-value"},
	})
	require.NoError(t, err)

	_, err = p.client.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: map[string]string{"other": "value"},
	})
	rpccode.Require(t, err, codes.InvalidArgument)
	p.kill(t)

	for value, isConfirmed := range map[string]bool{"test-value": true, "another": false} {
		answer, err := p.client.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: mounted("", nil).GetVolumeCapabilities(), MutableParameters: map[string]string{name: value},
		})
		require.NoError(t, err)
		require.Equal(t, isConfirmed, answer.GetConfirmed().GetMutableParameters()[name] == value, "want: the volume has the value of before")
	}
}

// TestHostpathpluginInPods has the arguments, paths and mounts of the manifests that name its image.
func TestHostpathpluginInPods(t *testing.T) {
	namespace.NeedRoot(t)

	built := filepath.Join(t.TempDir(), "built")
	require.NoError(t, child.BuildDriver(built))

	built, err := filepath.EvalSymlinks(built)
	require.NoError(t, err)

	t.Run("manifests", func(t *testing.T) { manifests(t, built) })
	t.Run("apart", func(t *testing.T) { apart(t, built) })
	t.Run("together", func(t *testing.T) { together(t, built) })
}

// manifests has a pod of each manifest.
func manifests(t *testing.T, built string) {
	t.Helper()

	for name, test := range map[string]struct {
		args       []string
		parameters map[string]string
		within     func(t *testing.T, p *pod)
	}{
		"kubernetes-1.34": {args: plugin},
		"with SNAPSHOT_METADATA_TESTS": {args: append(slices.Clone(plugin), "--enable-snapshot-metadata"), within: func(t *testing.T, p *pod) {
			t.Helper()

			source, err := p.client.CreateVolume(t.Context(), raw("source", nil))
			require.NoError(t, err)

			taken, err := p.client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "taken", SourceVolumeId: source.GetVolume().GetVolumeId()})
			require.NoError(t, err)

			for message, err := range p.client.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: taken.GetSnapshot().GetSnapshotId()}) {
				require.NoError(t, err)
				require.Equal(t, csi.BlockMetadataType_FIXED_LENGTH, message.GetBlockMetadataType(), "want: the default of the flag")
			}

			_, err = p.client.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: taken.GetSnapshot().GetSnapshotId()})
			require.NoError(t, err)

			_, err = p.client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: source.GetVolume().GetVolumeId()})
			require.NoError(t, err)
		}},
		"kubernetes-distributed": {
			args:       append(slices.Clone(plugin), "--capacity=slow=10Gi", "--capacity=fast=100Gi"),
			parameters: map[string]string{"kind": "fast"},
			within: func(t *testing.T, p *pod) {
				t.Helper()

				has, err := p.client.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"kind": "slow"}})
				require.NoError(t, err)
				require.EqualValues(t, 10<<30, has.GetAvailableCapacity(), "want: the capacity of the kind")

				large := mounted("large", map[string]string{"kind": "slow"})
				large.CapacityRange.RequiredBytes = 11 << 30
				_, err = p.client.CreateVolume(t.Context(), large)
				rpccode.Require(t, err, codes.ResourceExhausted)
			},
		},
		"csi-hostpath of the e2e tests": {args: e2e("csi-hostpath-e2e-1"), within: func(t *testing.T, p *pod) {
			t.Helper()

			info, err := p.client.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			require.NoError(t, err)
			require.EqualValues(t, 10, info.GetMaxVolumesPerNode(), "want: the limit of the flag")
			p.use(t, mounted("modified", nil), func(id, _ string) { modify(t, p, id) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			data := t.TempDir()
			p := newPod(t, built, data, false, test.args...)
			p.start(t)

			if test.within != nil {
				test.within(t, p)
			}

			p.useBoth(t, "volume", test.parameters)
			p.end(t)
			requireEmpty(t, data)
		})
	}
}

// apart is csi-mock of the e2e tests: its data and its mounts are in the container only.
func apart(t *testing.T, built string) {
	t.Helper()

	p := newPod(t, built, t.TempDir(), true, "--drivername=mock.storage.k8s.io", "--nodeid=node1", "--endpoint=/csi/csi.sock",
		"--statedir=/tmp/csi-hotpath-data", "-v=5", "--drivername=csi-mock-e2e-1", "--enable-attach", "--attach-limit", "1",
		"--node-expand-required=true")
	p.start(t)
	p.use(t, mounted("volume", nil), func(id, path string) {
		require.DirExists(t, path, "want: the kubelet finds the target path")

		larger := &csi.CapacityRange{RequiredBytes: 2 * mib}
		expanded, err := p.client.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: larger})
		require.NoError(t, err)
		require.True(t, expanded.GetNodeExpansionRequired(), "want: the kubelet calls NodeExpandVolume")

		_, err = p.client.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: id, VolumePath: strings.Replace(path, p.host, kubeletDir, 1), CapacityRange: larger,
		})
		require.NoError(t, err)

		second, err := p.client.CreateVolume(t.Context(), mounted("second", nil))
		require.NoError(t, err)

		_, err = p.client.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: second.GetVolume().GetVolumeId(), NodeId: "node1", VolumeContext: second.GetVolume().GetVolumeContext(),
			VolumeCapability: csiclient.MountCapability(writer, "ext4"),
		})
		rpccode.Require(t, err, codes.ResourceExhausted)

		_, err = p.client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: second.GetVolume().GetVolumeId()})
		require.NoError(t, err)
	})
	p.end(t)
	require.Contains(t, p.log.String(), `gRPCCall: {"Method":"/csi.v1.Node/NodePublishVolume"`)
	requireEmpty(t, filepath.Join(p.root, "tmp", "csi-hotpath-data"))
}

// together has drivers that share a directory of their host, as those of parallel specs do, and are killed meanwhile.
func together(t *testing.T, built string) {
	t.Helper()

	data := t.TempDir()

	t.Run("drivers", func(t *testing.T) {
		for _, name := range []string{"csi-hostpath-e2e-1", "csi-hostpath-e2e-2", "csi-hostpath-e2e-3"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()

				p := newPod(t, built, data, false, e2e(name)...)
				p.start(t)
				p.useBoth(t, "volume", nil)
				p.kill(t)
				p.useBoth(t, "volume", nil)
				p.end(t)
			})
		}
	})
	requireEmpty(t, data)
}
