package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

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

// moved has a symlink in place of a directory, whose mounts are unknown meanwhile, while the node starts.
func (n *onceNode) moved(t *testing.T, directory string, within func()) {
	t.Helper()
	require.NoError(t, n.close())
	require.NoError(t, os.Rename(directory, directory+".aside"))
	require.NoError(t, os.Symlink(directory+".aside", directory))
	require.NoError(t, n.open(t.Context()))
	within()
	require.NoError(t, os.Remove(directory))
	require.NoError(t, os.Rename(directory+".aside", directory))
	require.NoError(t, n.restart(t.Context()))
}

// TestAPublicationThatCannotBeUndoneStays: the start keeps its record, so that a later call undoes it.
func TestAPublicationThatCannotBeUndoneStays(t *testing.T) {
	n := newNode(t, "image")
	pod, target := n.in("kubelet/pod"), n.in("kubelet/pod/target")
	require.NoError(t, os.Mkdir(pod, 0o700))
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.publishAt(t.Context(), "pod/target", false))
	require.NoError(t, unix.Unmount(target, 0))

	n.moved(t, pod, func() {
		require.Contains(t, n.failures.String(), "cannot recover a staged volume")

		_, err := n.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging")})
		require.ErrorIs(t, err, mount.ErrSymlink)
		require.NoError(t, n.mounted("staging"))
	})

	require.NoDirExists(t, target)
	require.NoError(t, n.unstage(t.Context()))
	require.NoError(t, os.Remove(pod))
}

// TestAnInlineVolumeThatCannotBeRemovedStays, so that a later start or call removes it.
func TestAnInlineVolumeThatCannotBeRemovedStays(t *testing.T) {
	n := newNode(t, "inline")
	pod, target := n.in("kubelet/pod"), n.in("kubelet/pod/target")
	publish := func() error { return n.publishAt(t.Context(), "pod/target", false) }
	images := func(want int, when string) {
		t.Helper()

		stored, err := os.ReadDir(n.in("pool/ephemeral/images"))
		require.NoError(t, err)
		require.Len(t, stored, want, "want: its image, %s", when)
	}

	answer{codes.FailedPrecondition, "the CO must make the target's parent directory"}.require(t, publish(), "no parent directory")
	require.NoError(t, os.Mkdir(pod, 0o700))
	require.NoError(t, publish())
	require.NoError(t, unix.Unmount(target, 0))

	n.moved(t, pod, func() {
		require.Contains(t, n.failures.String(), "an ephemeral volume could not be recovered")
		require.ErrorIs(t, publish(), mount.ErrSymlink)
	})
	images(0, "after the next start")

	require.NoError(t, publish())
	require.NoError(t, unix.Mount("over", target, "tmpfs", 0, ""))
	answer{codes.FailedPrecondition, "something else is mounted over it"}.require(t, publish(), "beneath another mount")
	require.NoError(t, unix.Unmount(target, 0))
	images(1, "after a refusal")

	_, err := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: n.kind.id(), TargetPath: target})
	require.NoError(t, err)
	require.NoError(t, n.pools.Fail("default", os.ErrPermission))
	answer{codes.Unavailable, `pool "default"`}.require(t, publish(), "a pool that is not served")
	require.NoError(t, os.Remove(pod))
}
