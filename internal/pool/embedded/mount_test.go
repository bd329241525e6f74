package embedded_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestNewMountNamespace is what a container gets that starts again: the mount is
// gone, and the filesystem is not, because a volume's loop device has a file in
// it open.
func TestNewMountNamespace(t *testing.T) { onEach(t, testNewMountNamespace) }

func testNewMountNamespace(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool := ensure(t, kind, directory, small)
	loops := loop.NewLoops(loop.LoopsOptions{})

	volume, err := os.Create(filepath.Join(pool.Directory(), "volume"))
	require.NoError(t, err)
	require.NoError(t, volume.Truncate(mib))

	device, err := loops.Attach(t.Context(), volume, loop.AttachOptions{PreferredNumber: -1})
	require.NoError(t, err)

	detach := sync.OnceFunc(func() {
		require.NoError(t, device.Close())
		require.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device.Number))
	})
	defer detach()

	identity, err := loop.IdentityOf(volume)
	require.NoError(t, err)
	require.NoError(t, volume.Close())

	end(t, pool)
	require.NoError(t, unix.Unmount(filepath.Join(directory, "mounted"), unix.MNT_DETACH))

	before := devices(t, directory)
	require.Len(t, before, 1, "want: the pool has one device")

	again := ensure(t, kind, directory, larger)
	after := devices(t, directory)
	require.Len(t, after, 1, "want: the pool still has one device")
	require.Equal(t, before[0].Number, after[0].Number, "want: the device is the same")
	require.Equal(t, before[0].Sequence, after[0].Sequence, "the same attachment")
	require.Greater(t, total(t, again.Directory()), int64(small), "want: the filesystem has grown on the same device")

	volume, err = os.Open(filepath.Join(again.Directory(), "volume"))
	require.NoError(t, err)

	found, err := loop.IdentityOf(volume)
	require.NoError(t, err)
	require.NoError(t, volume.Close())
	require.Equal(t, identity, found, "volumes in use are known again")

	detach()
}

func TestConcurrentDriversShareThePool(t *testing.T) { onEach(t, testConcurrentDriversShareThePool) }

func testConcurrentDriversShareThePool(t *testing.T, kind string) {
	directory := newDirectory(t)
	ensure(t, kind, newDirectory(t), small) // another pool, which is mounted meanwhile

	const drivers = 4

	pools := make([]*embedded.Pool, drivers)

	var all sync.WaitGroup

	for i := range pools {
		all.Go(func() {
			var err error

			pools[i], err = embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small, Filesystem: kind})
			if err != nil {
				t.Error(err)
			}
		})
	}

	await.Return(t, all.Wait, "Ensure of all drivers to return")
	require.False(t, t.Failed(), "want: no goroutine of the test has failed")
	require.Len(t, devices(t, directory), 1, "want: all drivers share one device")

	write(t, filepath.Join(pools[0].Directory(), "data"), "kept")

	for i, pool := range pools {
		require.True(t, mounted(t, filepath.Join(directory, "mounted")), "%d have ended", i)
		holds(t, filepath.Join(pool.Directory(), "data"), "kept")
		end(t, pool)
	}

	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
}

func TestWaitForAnotherDriverIsCancelled(t *testing.T) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))

	other, err := os.Open(directory)
	require.NoError(t, err)

	defer other.Close()

	await.Flock(t, other, unix.LOCK_EX)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()

	_, err = embedded.Ensure(ctx, embedded.Options{Directory: directory, Bytes: small, Filesystem: filesystem.XFS})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	errtext.Require(t, err, "the driver that is at work")

	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	ensure(t, filesystem.XFS, directory, small)
}

// TestCloseWaitsForAnEndingProcess: a controller that is taken down together with its node
// has the pool open for a moment longer.
func TestCloseWaitsForAnEndingProcess(t *testing.T) { onEach(t, testCloseWaitsForAnEndingProcess) }

func testCloseWaitsForAnEndingProcess(t *testing.T, kind string) {
	directory := newDirectory(t)

	var beside *os.File

	waited := false
	log := slog.New(slog.NewTextHandler(eachLine(func(line string) {
		if strings.Contains(line, "waits for who ends beside") {
			waited = true

			require.NoError(t, beside.Close())
		}
	}), nil))

	pool, err := embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small, Filesystem: kind, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { end(t, pool) })

	beside, err = os.Open(pool.Directory())
	require.NoError(t, err)

	require.NoError(t, pool.Close(t.Context()))
	require.True(t, waited, "want: Close waits for who ends beside")
	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
	require.Empty(t, devices(t, directory), "want: no device is left")
}

// eachLine is shown each line of a log as it is written.
type eachLine func(line string)

func (f eachLine) Write(line []byte) (int, error) {
	f(string(line))

	return len(line), nil
}

func TestShutDownFilesystemIsMountedAgain(t *testing.T) {
	onEach(t, testShutDownFilesystemIsMountedAgain)
}

func testShutDownFilesystemIsMountedAgain(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool := ensure(t, kind, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")

	root, err := os.Open(pool.Directory())
	require.NoError(t, err)

	defer root.Close()

	shutDown(t, kind, pool.Directory())
	_ = pool.Close(t.Context())
	refused(t, kind, directory, small, embedded.ErrBusy, "shut down", "reboot")

	require.NoError(t, root.Close())
	again := ensure(t, kind, directory, small)
	holds(t, filepath.Join(again.Directory(), "data"), "kept")
}

// shutDown makes a filesystem as it is after an I/O error that it can't live with.
func shutDown(t *testing.T, kind, path string) {
	t.Helper()

	switch kind {
	case filesystem.Btrfs:
		// It has no call for it, and becomes read-only.
		require.NoError(t, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	default:
		tool(t, "xfs_io", "-x", "-c", "shutdown -f", path)
	}
}

func TestManualMountOfTheImage(t *testing.T) { onEach(t, testManualMountOfTheImage) }

func testManualMountOfTheImage(t *testing.T, kind string) {
	directory := newDirectory(t)
	end(t, ensure(t, kind, directory, small))

	image, err := os.OpenFile(filepath.Join(directory, "pool.img"), os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	// A losetup has other options, and no lock.
	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image, loop.AttachOptions{
		AutoClear: true, PreferredNumber: -1, ReadOnly: true,
	})
	require.NoError(t, err)

	defer device.Close()

	refused(t, kind, directory, 0, embedded.ErrForeign, device.Path, "detach")

	flags := map[string][]string{filesystem.XFS: {"ro", "norecovery"}, filesystem.Btrfs: {"ro", "rescue=nologreplay"}}
	options, err := mount.ParseFlags(flags[kind])
	require.NoError(t, err)

	tree, err := mount.Mount(device.Path, kind, options)
	require.NoError(t, err)
	tree.Close()
}

// TestDeviceWithoutAutoClearIsDetached at the end: an administrator has attached and mounted the
// image.
func TestDeviceWithoutAutoClearIsDetached(t *testing.T) {
	onEach(t, testDeviceWithoutAutoClearIsDetached)
}

func testDeviceWithoutAutoClearIsDetached(t *testing.T, kind string) {
	directory := newDirectory(t)
	end(t, ensure(t, kind, directory, small))

	image := filepath.Join(directory, "pool.img")
	device := strings.TrimSpace(tool(t, "losetup", "--find", "--show", "--sector-size", "4096", image))
	tool(t, "mount", "-t", kind, device, filepath.Join(directory, "mounted"))

	pool := ensure(t, kind, directory, 0)
	require.Equal(t, device, devices(t, directory)[0].Path, "want: the mount is adopted")
	end(t, pool)
	require.Empty(t, devices(t, directory), "want: no device is left")
}
