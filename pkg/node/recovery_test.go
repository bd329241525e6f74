package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// TestAStartWithoutItsDevicesFails: volumes whose devices are unknown would be attached twice.
func TestAStartWithoutItsDevicesFails(t *testing.T) {
	t.Parallel()

	n := &onceNode{kind: onceKinds()[0], directory: t.TempDir()}
	for _, each := range onceDirectories {
		require.NoError(t, os.Mkdir(n.in(each), 0o700))
	}

	// A file, where the devices of the machine are listed.
	n.sys = n.in("sys")
	require.NoError(t, os.Mkdir(n.sys, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(n.sys, "block"), nil, 0o600))

	require.ErrorIs(t, n.open(t.Context()), unix.ENOTDIR)

	require.NoError(t, os.Remove(filepath.Join(n.sys, "block")))
	require.NoError(t, os.Mkdir(filepath.Join(n.sys, "block"), 0o700))
	require.NoError(t, n.open(t.Context()))
	require.NoError(t, n.close())
}

// TestAPublicationThatCannotBeUndoneStays: the start keeps its record, so that a later call undoes it.
func TestAPublicationThatCannotBeUndoneStays(t *testing.T) {
	n := newNode(t, "image")
	pod, target := n.in("kubelet/pod"), n.in("kubelet/pod/target")
	require.NoError(t, os.Mkdir(pod, 0o700))
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.publishAt(t.Context(), "pod/target", false))
	require.NoError(t, n.close())

	// Which directory the target path is in is unknown while a symlink is there.
	require.NoError(t, unix.Unmount(target, 0))
	require.NoError(t, os.Rename(pod, pod+".aside"))
	require.NoError(t, os.Symlink(pod+".aside", pod))
	require.NoError(t, n.open(t.Context()))

	_, err := n.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging")})
	require.ErrorIs(t, err, mount.ErrSymlink)
	require.NoError(t, n.mounted("staging"))

	require.NoError(t, os.Remove(pod))
	require.NoError(t, os.Rename(pod+".aside", pod))
	require.NoError(t, n.restart(t.Context()))

	require.NoDirExists(t, target)
	require.NoError(t, n.unstage(t.Context()))
	require.NoError(t, os.Remove(pod))
}
