package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
)

// These tests run removeRoot without a driver, on leftovers that an interrupted demo could
// leave on a machine.

func needsRoot(t *testing.T) {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts and attaches loop devices")
	}
}

func contextWithTimeout(t *testing.T) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)

	return ctx
}

// unmountAfterTest unmounts below root in case the test fails.
func unmountAfterTest(t *testing.T, root string) {
	t.Helper()

	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()

		require.NoError(t, unmountAndDetach(ctx, root))
	})
}

func TestRemoveRootUnmountsNestedMounts(t *testing.T) {
	needsRoot(t)

	root := filepath.Join(t.TempDir(), "demo")
	image, staging := filepath.Join(root, "pool", "a.img"), filepath.Join(root, "staging")
	target, device := filepath.Join(root, "target"), filepath.Join(root, "device")

	for _, dir := range []string{filepath.Dir(image), staging, target} {
		require.NoError(t, os.MkdirAll(dir, 0o750))
	}

	unmountAfterTest(t, root)
	require.NoError(t, os.WriteFile(image, nil, fileMode))
	require.NoError(t, os.Truncate(image, 64<<20))
	require.NoError(t, child.Command(t, "mkfs.ext4", "-q", "-F", image).Run())
	require.NoError(t, child.Command(t, "mount", "-o", "loop", image, staging).Run())

	loops, err := loopsBelow(root)
	require.NoError(t, err)
	require.Len(t, loops, 1, "want: the demo has attached a loop device")
	require.Equal(t, image, loops[0].BackingPath)

	// A directory in the volume, the volume over itself, the device as a file.
	require.NoError(t, os.Mkdir(filepath.Join(staging, "inner"), 0o750))
	require.NoError(t, os.WriteFile(device, nil, fileMode))
	require.NoError(t, unix.Mount(staging, target, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount(staging, filepath.Join(target, "inner"), "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount(staging, target, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount(fmt.Sprintf("/dev/loop%d", loops[0].Number), device, "", unix.MS_BIND, ""))

	require.NoError(t, removeRoot(contextWithTimeout(t), root, false))

	mounts, err := mountsBelow(root)
	require.NoError(t, err)
	require.Empty(t, mounts, "want: no mount is left")

	loops, err = loopsBelow(root)
	require.NoError(t, err)
	require.Empty(t, loops, "want: no loop device is left")
	require.NoDirExists(t, root)
}

func TestRemoveRootUnmountsEmbeddedPool(t *testing.T) {
	needsRoot(t)

	root := filepath.Join(t.TempDir(), "demo")
	outer, mounted := filepath.Join(root, "pool", "swept-pool.img"), filepath.Join(root, "pool", "mounted")
	inner, staging, raw := filepath.Join(mounted, "swept-a.img"), filepath.Join(root, "staging"), filepath.Join(mounted, "swept-b.img")

	for _, dir := range []string{mounted, staging} {
		require.NoError(t, os.MkdirAll(dir, 0o750))
	}

	unmountAfterTest(t, root)

	image := func(path string, size int64, mkfs ...string) {
		require.NoError(t, os.WriteFile(path, nil, fileMode))
		require.NoError(t, os.Truncate(path, size))

		if mkfs != nil {
			out, err := child.Command(t, mkfs[0], append(mkfs[1:], path)...).CombinedOutput()
			require.NoError(t, err, string(out))
		}
	}

	image(outer, 300<<20, "mkfs.xfs", "-q")
	require.NoError(t, child.Command(t, "mount", "-o", "loop", outer, mounted).Run())
	image(inner, 64<<20, "mkfs.ext4", "-q", "-F")
	require.NoError(t, child.Command(t, "mount", "-o", "loop", inner, staging).Run())
	// A raw block volume is a device that is not mounted.
	image(raw, 64<<20)
	require.NoError(t, child.Command(t, "losetup", "-f", raw).Run())

	loops, err := loopsBelow(root)
	require.NoError(t, err)
	require.Len(t, loops, 3, "want: the demo has attached three loop devices")

	require.NoError(t, removeRoot(contextWithTimeout(t), root, false))
	require.NoDirExists(t, root)

	for _, device := range loops {
		// Another process may have taken the number.
		image, _ := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", device.Number))
		require.NotContains(t, string(image), filepath.Base(device.BackingPath))
	}
}

func TestRemoveRootDeletesNothingThroughAMount(t *testing.T) {
	needsRoot(t)

	root, outside := filepath.Join(t.TempDir(), "demo"), t.TempDir()
	target, precious := filepath.Join(root, "target"), filepath.Join(outside, "precious")

	require.NoError(t, os.MkdirAll(target, 0o750))
	require.NoError(t, os.WriteFile(precious, []byte("data"), fileMode))
	require.NoError(t, unix.Mount(outside, target, "", unix.MS_BIND, ""))
	unmountAfterTest(t, root)

	// A process keeps it busy, so that only MNT_DETACH unmounts it.
	user, err := os.Open(filepath.Join(target, "precious"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = user.Close() })

	require.NoError(t, removeRoot(contextWithTimeout(t), root, false))
	require.NoDirExists(t, root)
	require.FileExists(t, precious)
}

func TestRemoveRootKeepsDirectoryOnRequest(t *testing.T) {
	root := filepath.Join(t.TempDir(), "demo")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "state"), 0o750))
	require.NoError(t, removeRoot(contextWithTimeout(t), root, true))
	require.DirExists(t, filepath.Join(root, "state"))
}

func TestRemoveRootSparesLongerNames(t *testing.T) {
	needsRoot(t)

	parent := t.TempDir()
	root, neighbour := filepath.Join(parent, "demo"), filepath.Join(parent, "demo-2")

	for _, dir := range []string{root, neighbour} {
		require.NoError(t, os.Mkdir(dir, 0o750))
	}

	require.NoError(t, unix.Mount(parent, neighbour, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(neighbour, 0)) })

	mounts, err := mountsBelow(root)
	require.NoError(t, err)
	require.Empty(t, mounts, "want: no mount is left below the root")
	require.NoError(t, removeRoot(contextWithTimeout(t), root, false))

	mounts, err = mountsBelow(neighbour)
	require.NoError(t, err)
	require.Len(t, mounts, 1, "want: the mount of the directory with the longer name stays")
}
