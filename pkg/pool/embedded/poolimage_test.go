package embedded_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestFreshPoolReflinksAndGoesAtTheEnd(t *testing.T) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o750))
	require.NoError(t, os.Chown(directory, 1234, 1235))

	pool := ensure(t, directory, small+1)
	require.Equal(t, filepath.Join(directory, "mounted"), pool.Directory())
	require.Equal(t, filepath.Join(directory, "pool.img"), pool.Image())
	require.EqualValues(t, small+4096, size(t, pool.Image()), "a size is a multiple of the blocks")
	require.Less(t, allocated(t, pool.Image()), int64(small/2), "the image is sparse")

	info, err := os.Stat(pool.Directory())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750)|os.ModeDir, info.Mode())

	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.Equal(t, []uint32{1234, 1235}, []uint32{stat.Uid, stat.Gid}, "a controller without privilege works in it")

	write(t, filepath.Join(pool.Directory(), "a"), "text")
	tool(t, "cp", "--reflink=always", filepath.Join(pool.Directory(), "a"), filepath.Join(pool.Directory(), "b"))

	attached := devices(t, directory)
	require.Len(t, attached, 1)

	status, found, err := loop.NewLoops(loop.LoopsOptions{}).Status(attached[0].Number)
	require.NoError(t, err)
	require.True(t, found, "want: the device is found")
	require.True(t, status.DirectIO)
	require.Equal(t, 4096, status.BlockSize)
	require.Greater(t, attached[0].Number, loop.MaxNumber-1024, "the first numbers are the volumes' slots")

	end(t, pool)
	require.False(t, mounted(t, filepath.Join(directory, "mounted")))
	require.Empty(t, devices(t, directory))
	end(t, pool)

	// Not formatted again, whatever is asked.
	for _, bytes := range []int64{0, small, mib} {
		again := ensure(t, directory, bytes)
		holds(t, filepath.Join(again.Directory(), "b"), "text")
		end(t, again)
	}

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the image and the mount point")
}

func TestSpaceThatIsDeletedInsideGoesBackToTheHost(t *testing.T) {
	pool := ensure(t, newDirectory(t), small)
	before := allocated(t, pool.Image())
	file := filepath.Join(pool.Directory(), "bulk")

	write(t, file, string(make([]byte, 100*mib))+"x")
	require.Greater(t, allocated(t, pool.Image()), before+90*mib)
	require.NoError(t, os.Remove(file))

	require.Eventually(t, func() bool {
		unix.Sync()

		return allocated(t, pool.Image()) < before+10*mib
	}, time.Minute, 10*time.Millisecond)
}

func TestDirectoryThatReflinksOrThatNobodyAsksAboutIsThePool(t *testing.T) {
	namespace.NeedRoot(t)

	reflinking := harness.ReflinkPool(t, small)
	for _, bytes := range []int64{0, small} {
		pool := ensure(t, reflinking, bytes)
		require.Equal(t, reflinking, pool.Directory())
		require.Empty(t, pool.Image())
		end(t, pool)
	}

	entries, err := os.ReadDir(reflinking)
	require.NoError(t, err)
	require.Empty(t, entries)

	missing := newDirectory(t)
	require.Equal(t, missing, ensure(t, missing, 0).Directory())
	require.NoDirExists(t, missing)
}

// TestImageOfBeforeIsUsed also where none would be made by now.
func TestImageOfBeforeIsUsed(t *testing.T) {
	namespace.NeedRoot(t)

	directory := harness.ReflinkPool(t, larger)
	image, err := os.Create(filepath.Join(directory, "pool.img"))
	require.NoError(t, err)
	require.NoError(t, image.Truncate(small))
	require.NoError(t, image.Close())
	tool(t, "mkfs.xfs", "-q", "-s", "size=4096", image.Name())

	pool := ensure(t, directory, small)
	require.Equal(t, image.Name(), pool.Image())
}

func TestMountSurvivesItsDriver(t *testing.T) {
	directory := newDirectory(t)
	died(t, directory, small)

	inside := filepath.Join(directory, "mounted")
	require.True(t, mounted(t, inside), "want: it is mounted")
	write(t, filepath.Join(inside, "data"), "kept")

	before := devices(t, directory)
	pool := ensure(t, directory, small)
	require.Equal(t, before, devices(t, directory), "adopted, not attached anew")
	holds(t, filepath.Join(pool.Directory(), "data"), "kept")

	// A crash of the machine, as far as the image can tell: there is no unmount,
	// so that the log has to be replayed.
	crashed := newDirectory(t)
	require.NoError(t, os.Mkdir(crashed, 0o700))
	write(t, filepath.Join(inside, "late"), "in the log")
	tool(t, "cp", "--sparse=always", pool.Image(), filepath.Join(crashed, "pool.img"))

	end(t, pool)

	copied := ensure(t, crashed, 0)
	holds(t, filepath.Join(copied.Directory(), "data"), "kept")
	holds(t, filepath.Join(copied.Directory(), "late"), "in the log")
}

func TestPoolInUseStaysAndIsAdopted(t *testing.T) {
	directory := newDirectory(t)
	pool := ensure(t, directory, small)

	open, err := os.Create(filepath.Join(pool.Directory(), "open"))
	require.NoError(t, err)

	defer open.Close()

	end(t, pool)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: it is mounted")

	again := ensure(t, directory, small)
	require.NoError(t, open.Close())

	// A published directory holds the filesystem, but not its mount.
	bound := filepath.Join(filepath.Dir(directory), "target")
	require.NoError(t, os.Mkdir(bound, 0o700))
	require.NoError(t, unix.Mount(again.Directory(), bound, "", unix.MS_BIND, ""))
	end(t, again)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: it is mounted")

	third := ensure(t, directory, small)
	require.NoError(t, unix.Unmount(bound, 0))
	end(t, third)
	require.False(t, mounted(t, filepath.Join(directory, "mounted")))
	require.Empty(t, devices(t, directory))
}

// TestNewMountNamespace is what a container gets that starts again: the mount is
// gone, and the filesystem is not, because a volume's loop device has a file in
// it open.
func TestNewMountNamespace(t *testing.T) {
	directory := newDirectory(t)
	pool := ensure(t, directory, small)
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
	require.Len(t, before, 1)

	again := ensure(t, directory, larger)
	after := devices(t, directory)
	require.Len(t, after, 1)
	require.Equal(t, before[0].Number, after[0].Number)
	require.Equal(t, before[0].Sequence, after[0].Sequence, "the same attachment")
	require.Greater(t, total(t, again.Directory()), int64(small))

	volume, err = os.Open(filepath.Join(again.Directory(), "volume"))
	require.NoError(t, err)

	found, err := loop.IdentityOf(volume)
	require.NoError(t, err)
	require.NoError(t, volume.Close())
	require.Equal(t, identity, found, "volumes in use are known again")

	detach()
}

func TestSeveralDriversAtOnce(t *testing.T) {
	directory := newDirectory(t)

	const drivers = 4

	pools := make([]*embedded.Pool, drivers)

	var all sync.WaitGroup

	for i := range pools {
		all.Go(func() {
			var err error

			pools[i], err = embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small})
			if err != nil {
				t.Error(err)
			}
		})
	}

	await.Return(t, all.Wait, "Ensure of all drivers to return")
	require.False(t, t.Failed(), "want: no goroutine of the test has failed")
	require.Len(t, devices(t, directory), 1)

	write(t, filepath.Join(pools[0].Directory(), "data"), "kept")

	for i, pool := range pools {
		require.True(t, mounted(t, filepath.Join(directory, "mounted")), "%d have ended", i)
		holds(t, filepath.Join(pool.Directory(), "data"), "kept")
		end(t, pool)
	}

	require.False(t, mounted(t, filepath.Join(directory, "mounted")))
}

func TestWaitForAnotherDriverCanBeCalledOff(t *testing.T) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))

	other, err := os.Open(directory)
	require.NoError(t, err)

	defer other.Close()

	await.Flock(t, other, unix.LOCK_EX)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()

	_, err = embedded.Ensure(ctx, embedded.Options{Directory: directory, Bytes: small})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the driver that is at work")

	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	ensure(t, directory, small)
}

func TestGrowth(t *testing.T) {
	directory := newDirectory(t)
	pool := ensure(t, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")

	// While it is mounted, as of a driver that was killed.
	online := ensure(t, directory, larger)
	require.EqualValues(t, larger, size(t, pool.Image()))
	require.Greater(t, total(t, online.Directory()), int64(larger*8/10))
	end(t, pool)
	end(t, online)

	for _, step := range []struct{ asked, image int64 }{{2 * larger, 2 * larger}, {small, 2 * larger}, {0, 2 * larger}} {
		pool := ensure(t, directory, step.asked)
		require.Equal(t, step.image, size(t, pool.Image()))
		require.Greater(t, total(t, pool.Directory()), step.image*8/10)
		holds(t, filepath.Join(pool.Directory(), "data"), "kept")
		end(t, pool)
	}

	require.Empty(t, devices(t, directory))
	tool(t, "xfs_repair", "-n", "-f", filepath.Join(directory, "pool.img"))
}

// TestGrowthThatACrashInterrupted is completed by the next start, also by one
// that asks for nothing.
func TestGrowthThatACrashInterrupted(t *testing.T) {
	grownImage := func(t *testing.T, directory string) {
		t.Helper()
		require.NoError(t, os.Truncate(filepath.Join(directory, "pool.img"), larger))
	}

	for name, interrupt := range map[string]func(*testing.T, string){
		"after the image": grownImage,
		"after the device": func(t *testing.T, directory string) {
			t.Helper()
			grownImage(t, directory)

			_, err := loop.NewLoops(loop.LoopsOptions{}).Resize(devices(t, directory)[0].Number)
			require.NoError(t, err)
		},
	} {
		for _, reboot := range []bool{false, true} {
			for _, asked := range []int64{0, larger} {
				t.Run(name, func(t *testing.T) {
					directory := newDirectory(t)
					died(t, directory, small)
					interrupt(t, directory)

					if reboot {
						require.NoError(t, unix.Unmount(filepath.Join(directory, "mounted"), 0))
					}

					pool := ensure(t, directory, asked)
					require.Greater(t, total(t, pool.Directory()), int64(larger*8/10))
				})
			}
		}
	}
}

func TestMakingThatACrashInterrupted(t *testing.T) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	write(t, filepath.Join(directory, "pool.img.making"), "half a filesystem")

	pool := ensure(t, directory, small)
	require.True(t, mounted(t, pool.Directory()), "want: it is mounted")
	require.NoFileExists(t, filepath.Join(directory, "pool.img.making"))

	// Nor is anything left of a making that fails, or is called off.
	failed := newDirectory(t)
	refused(t, failed, mib, filesystem.ErrTooSmall)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := embedded.Ensure(ctx, embedded.Options{Directory: failed, Bytes: small})
	require.ErrorIs(t, err, context.Canceled)

	entries, err := os.ReadDir(failed)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFullHost(t *testing.T) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "size=96m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, 0)) })

	ballast := filepath.Join(directory, "ballast")
	write(t, ballast, string(make([]byte, 95*mib)))
	refused(t, directory, small, embedded.ErrHostFull, "bytes free", "make room")
	require.NoFileExists(t, filepath.Join(directory, "pool.img"))
	require.NoError(t, os.Remove(ballast))

	pool := ensure(t, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")
	end(t, pool)

	// A start must not fail for it: deleting volumes is what makes room.
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(directory, &stat))
	write(t, ballast, string(make([]byte, int64(stat.Bavail)*stat.Bsize-4*mib)))

	pool = ensure(t, directory, larger)
	require.EqualValues(t, small, size(t, pool.Image()))
	holds(t, filepath.Join(pool.Directory(), "data"), "kept")
	end(t, pool)

	require.NoError(t, os.Remove(ballast))
	pool = ensure(t, directory, larger)
	require.EqualValues(t, larger, size(t, pool.Image()))
	end(t, pool)
}

// TestWaitsForWhoEndsBeside: a controller that is taken down together with its node
// has the pool open for a moment longer.
func TestWaitsForWhoEndsBeside(t *testing.T) {
	directory := newDirectory(t)

	var beside *os.File

	waited := false
	log := slog.New(slog.NewTextHandler(eachLine(func(line string) {
		if strings.Contains(line, "waits for who ends beside") {
			waited = true

			require.NoError(t, beside.Close())
		}
	}), nil))

	pool, err := embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { end(t, pool) })

	beside, err = os.Open(pool.Directory())
	require.NoError(t, err)

	require.NoError(t, pool.Close(t.Context()))
	require.True(t, waited, "want: Close waits for who ends beside")
	require.False(t, mounted(t, filepath.Join(directory, "mounted")))
	require.Empty(t, devices(t, directory))
}

// eachLine is shown each line of a log as it is written.
type eachLine func(line string)

func (f eachLine) Write(line []byte) (int, error) {
	f(string(line))

	return len(line), nil
}

func TestShutDownFilesystemIsMountedAnew(t *testing.T) {
	directory := newDirectory(t)
	pool := ensure(t, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")

	root, err := os.Open(pool.Directory())
	require.NoError(t, err)

	defer root.Close()

	// As after an I/O error that it can't live with.
	tool(t, "xfs_io", "-x", "-c", "shutdown -f", pool.Directory())
	_ = pool.Close(t.Context())
	refused(t, directory, small, embedded.ErrBusy, "shut down", "reboot")

	require.NoError(t, root.Close())
	again := ensure(t, directory, small)
	holds(t, filepath.Join(again.Directory(), "data"), "kept")
}

func TestWithoutPrivilege(t *testing.T) {
	if directory := os.Getenv("TOUCHSTONE_TEST_AS_NOBODY"); directory != "" {
		asNobody(t, directory)

		return
	}

	const nobody = 65534

	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.NoError(t, os.Chown(directory, nobody, nobody))

	// t.TempDir makes two, for its owner only.
	for parent := filepath.Dir(directory); strings.Contains(parent, t.Name()); parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o755))
	}

	binary := filepath.Join(filepath.Dir(directory), "test")
	itself, err := os.Executable()
	require.NoError(t, err)
	tool(t, "cp", itself, binary)

	run := func(expect string) {
		command := child.Command(t, binary, "-test.run=^TestWithoutPrivilege$", "-test.v")
		command.Dir = filepath.Dir(directory)
		command.Env = append(os.Environ(), "TOUCHSTONE_TEST_AS_NOBODY="+directory, "TOUCHSTONE_TEST_EXPECT="+expect)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Contains(t, string(output), "--- PASS")
	}

	run("refusal")

	pool := ensure(t, directory, small)
	run("use")
	holds(t, filepath.Join(pool.Directory(), "nobody's"), "written")

	end(t, pool)
	run("refusal")
}

// asNobody is what a controller without privilege sees.
func asNobody(t *testing.T, directory string) {
	t.Helper()

	pool, err := embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small})
	if os.Getenv("TOUCHSTONE_TEST_EXPECT") == "refusal" {
		require.ErrorIs(t, err, embedded.ErrPrivilege)
		require.ErrorContains(t, err, "mode node or all")

		return
	}

	require.NoError(t, err)
	write(t, filepath.Join(pool.Directory(), "nobody's"), "written")
	require.NoError(t, pool.Close(t.Context()))
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "it is not ours to unmount")
}

func TestMountByHandOfTheSameImage(t *testing.T) {
	directory := newDirectory(t)
	end(t, ensure(t, directory, small))

	image, err := os.OpenFile(filepath.Join(directory, "pool.img"), os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	// A losetup has other options, and no lock.
	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image, loop.AttachOptions{
		AutoClear: true, PreferredNumber: -1, ReadOnly: true,
	})
	require.NoError(t, err)

	defer device.Close()

	refused(t, directory, 0, embedded.ErrForeign, device.Path, "detach")

	options, err := mount.ParseFlags([]string{"ro", "norecovery"})
	require.NoError(t, err)

	tree, err := mount.Mount(device.Path, "xfs", options)
	require.NoError(t, err)
	tree.Close()
}
