package vm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// Contexts of test/vm/selinux.cil: the files of two pods, and a file without a label.
const (
	firstContext  = "system_u:object_r:container_file_t:s0:c1,c2"
	secondContext = "system_u:object_r:container_file_t:s0:c3,c4"
	noContext     = "system_u:object_r:unlabeled_t:s0"
)

// TestSELinuxContexts mounts volumes for pods as a kubelet does if seLinuxMount is true: each pod can read its own
// files and no other's, and no label on the disk changes for that.
func TestSELinuxContexts(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)
			enforceSELinux(t)

			d := startDriver(t, mountDisk(t, "xfs"))
			v := newSELinuxVolume(t, d, fsType, nil)

			v.takeOut(t, "")
			v.write(t, "labelled", secondContext)
			v.requireLabels(t, map[string]string{"": noContext, "labelled": secondContext})
			v.putAway(t)

			v.takeOut(t, firstContext)
			v.write(t, "written", "")
			v.requireLabels(t, map[string]string{"": firstContext, "labelled": firstContext, "written": firstContext})
			require.ErrorIs(t, v.relabel("written", secondContext), unix.ENOTSUP, "want: files have no labels of their own")
			v.requireReadableBy(t, "s0:c1,c2", "s0:c3,c4")
			v.requireAlone(t, firstContext, secondContext)
			d.restartKilled(t)
			v.requireAlone(t, firstContext, secondContext)
			v.endFrozen(t)

			v.takeOut(t, secondContext)
			v.requireReadableBy(t, "s0:c3,c4", "s0:c1,c2")
			v.putAway(t)

			v.takeOut(t, "")
			v.requireLabels(t, map[string]string{"": noContext, "labelled": secondContext, "written": noContext})
			v.putAway(t)
			v.remove(t)
		})
	}

	t.Run("directory", func(t *testing.T) {
		inMachine(t)
		enforceSELinux(t)

		d := startDriver(t, mountDisk(t, "xfs"))
		v := newSELinuxVolume(t, d, "", map[string]string{"backing": "directory"})

		require.NoError(t, d.Attach(t.Context(), v.with("", "one")))
		requireRefused(t, d.Stage(t.Context(), v.with(firstContext, "one")), codes.FailedPrecondition, "seLinuxMount: false")
		require.NoError(t, d.Detach(t.Context(), v.with("", "one")))

		// The container runtime labels it, as it does without seLinuxMount.
		v.takeOut(t, "")
		v.write(t, "written", firstContext)
		requireRefused(t, d.Publish(t.Context(), v.with(firstContext, "two")), codes.FailedPrecondition, "seLinuxMount: false")
		v.requireReadableBy(t, "s0:c1,c2", "s0:c3,c4")
		v.putAway(t)
		v.remove(t)
	})
}

// enforceSELinux loads the policy and enforces it until the test ends.
func enforceSELinux(t *testing.T) {
	t.Helper()

	policy, err := os.ReadFile(beside(t, "policy"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/sys/fs/selinux/load", policy, fileMode), "the kernel does not take the policy")

	enforce := func(yes string) { require.NoError(t, os.WriteFile("/sys/fs/selinux/enforce", []byte(yes), fileMode)) }
	enforce("1")
	t.Cleanup(func() { enforce("0") })
}

// seLinuxVolume is a volume that pods of one node may share.
type seLinuxVolume struct {
	driver *driver
	volume *csi.Volume
	fsType string
}

func newSELinuxVolume(t *testing.T, d *driver, fsType string, parameters map[string]string) *seLinuxVolume {
	t.Helper()

	v := &seLinuxVolume{driver: d, fsType: fsType, volume: &csi.Volume{}}
	created, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "shared", CapacityRange: &csi.CapacityRange{RequiredBytes: 320 * mib}, Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{v.with("", "").Capability},
	})
	require.NoError(t, err)

	v.volume = created.GetVolume()

	return v
}

// with returns the use of the volume by a pod whose files have the context.
func (v *seLinuxVolume) with(context, pod string) *csiclient.Publication {
	var flags []string
	if context != "" {
		flags = []string{`context="` + context + `"`}
	}

	return &csiclient.Publication{
		VolumeID: v.volume.GetVolumeId(), VolumeContext: v.volume.GetVolumeContext(), NodeID: nodeID,
		Capability:  csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, v.fsType, flags...),
		StagingPath: filepath.Join(v.driver.kubelet(), "plugins", "staging"),
		TargetPath:  filepath.Join(v.driver.kubelet(), "pods", pod, "volume"),
	}
}

func (v *seLinuxVolume) takeOut(t *testing.T, context string) {
	t.Helper()

	claim := v.with(context, "one")
	require.NoError(t, v.driver.Attach(t.Context(), claim))
	require.NoError(t, v.driver.Stage(t.Context(), claim))
	require.NoError(t, v.driver.Publish(t.Context(), claim))
}

// putAway undoes takeOut. What ends a use names no capability.
func (v *seLinuxVolume) putAway(t *testing.T) {
	t.Helper()

	claim := v.with("", "one")
	require.NoError(t, v.driver.Unpublish(t.Context(), claim))
	require.NoError(t, v.driver.Unstage(t.Context(), claim))
	require.NoError(t, v.driver.Detach(t.Context(), claim))
}

// endFrozen is putAway of a filesystem that another program has frozen and unmounted: the driver thaws it by one more
// mount, which has to have the same context.
func (v *seLinuxVolume) endFrozen(t *testing.T) {
	t.Helper()

	claim := v.with("", "one")
	require.NoError(t, v.driver.Unpublish(t.Context(), claim))
	run(t, "fsfreeze", "--freeze", claim.StagingPath)
	require.NoError(t, unix.Unmount(claim.StagingPath, unix.MNT_DETACH))
	require.NoError(t, v.driver.Unstage(t.Context(), claim))
	require.NoError(t, v.driver.Detach(t.Context(), claim))
}

func (v *seLinuxVolume) remove(t *testing.T) {
	t.Helper()

	_, err := v.driver.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.volume.GetVolumeId()})
	require.NoError(t, err)
}

func (v *seLinuxVolume) path(file string) string {
	return filepath.Join(v.with("", "one").TargetPath, file)
}

// write makes a file, and labels it unless the label is "".
func (v *seLinuxVolume) write(t *testing.T, file, label string) {
	t.Helper()
	require.NoError(t, os.WriteFile(v.path(file), []byte(file), fileMode))

	if label != "" {
		require.NoError(t, v.relabel(file, label))
	}
}

func (v *seLinuxVolume) relabel(file, label string) error {
	return unix.Setxattr(v.path(file), "security.selinux", []byte(label), 0)
}

func (v *seLinuxVolume) requireLabels(t *testing.T, want map[string]string) {
	t.Helper()

	got := map[string]string{}

	for file := range want {
		var label [256]byte

		length, err := unix.Getxattr(v.path(file), "security.selinux", label[:])
		require.NoError(t, err, v.path(file))

		got[file] = strings.TrimRight(string(label[:length]), "\x00")
	}

	require.Equal(t, want, got, "want: the labels of the files")
}

// requireReadableBy has a container of each level read the file "written".
func (v *seLinuxVolume) requireReadableBy(t *testing.T, level, other string) {
	t.Helper()

	read := func(level string) (string, error) {
		output, err := child.CommandWithin(t, waitLimit, "sh", "-c",
			"printf system_u:system_r:container_t:"+level+" >/proc/self/attr/exec && exec /usr/lib/busybox/cat "+v.path("written")).CombinedOutput()

		return string(output), err
	}

	output, err := read(level)
	require.NoError(t, err, output)
	require.Equal(t, "written", output)

	output, err = read(other)
	require.Error(t, err, "want: the kernel refuses a container with another level, which has read %q", output)
	require.Contains(t, output, "Permission denied")
}

// requireAlone checks that further pods on the node can have the volume with the context that it has, and with no other.
func (v *seLinuxVolume) requireAlone(t *testing.T, context, other string) {
	t.Helper()

	same := v.with(context, "two")
	require.NoError(t, v.driver.Stage(t.Context(), same))
	require.NoError(t, v.driver.Publish(t.Context(), same))
	require.NoError(t, v.driver.Unpublish(t.Context(), same))

	for _, context := range []string{other, ""} {
		requireRefused(t, v.driver.Stage(t.Context(), v.with(context, "two")), codes.AlreadyExists, "mount_flags")
		requireRefused(t, v.driver.Publish(t.Context(), v.with(context, "two")), codes.FailedPrecondition, "other SELinux contexts")
		requireRefused(t, v.driver.Publish(t.Context(), v.with(context, "one")), codes.AlreadyExists, "mount_flags")
	}

	// Publications outlive a staging that another program unmounts, also while a probe has it open.
	require.NoError(t, unix.Unmount(same.StagingPath, unix.MNT_DETACH))
	requireRefused(t, v.driver.Stage(t.Context(), v.with(other, "two")), codes.FailedPrecondition, "other SELinux contexts")
	require.NoError(t, v.driver.Stage(t.Context(), same))
}

func requireRefused(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	errtext.Require(t, err, words)
	require.NotContains(t, err.Error(), "s0:c", "want: no value of a mount flag in a message")
}
