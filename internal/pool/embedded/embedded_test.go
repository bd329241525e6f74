package embedded_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestFreshPoolReflinksAndIsUnmounted(t *testing.T) {
	onEach(t, testFreshPoolReflinksAndIsUnmounted)
}

func testFreshPoolReflinksAndIsUnmounted(t *testing.T, kind string) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o750))
	require.NoError(t, os.Chown(directory, 1234, 1235))

	pool := ensure(t, kind, directory, small+1)
	require.Equal(t, filepath.Join(directory, "mounted"), pool.Directory())
	require.Equal(t, filepath.Join(directory, "pool.img"), pool.Image())
	require.EqualValues(t, small+4096, size(t, pool.Image()), "a size is a multiple of the blocks")
	require.Less(t, allocated(t, pool.Image()), int64(small/2), "the image is sparse")

	info, err := os.Stat(pool.Directory())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750)|os.ModeDir, info.Mode(), "want: the pool's directory has its mode")

	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok, "want: the directory has a stat")
	require.Equal(t, []uint32{1234, 1235}, []uint32{stat.Uid, stat.Gid}, "a controller without privilege works in it")

	write(t, filepath.Join(pool.Directory(), "a"), "text")
	tool(t, "cp", "--reflink=always", filepath.Join(pool.Directory(), "a"), filepath.Join(pool.Directory(), "b"))

	attached := devices(t, directory)
	require.Len(t, attached, 1, "want: the pool has one device")

	status, found, err := loop.NewLoops(loop.LoopsOptions{}).Status(attached[0].Number)
	require.NoError(t, err)
	require.True(t, found, "want: the device is found")
	require.True(t, status.DirectIO, "want: the device has direct I/O")
	require.Equal(t, 4096, status.BlockSize, "want: the device has blocks of 4096 bytes")
	require.Greater(t, attached[0].Number, loop.MaxNumber-1024, "the first numbers are the volumes' slots")

	end(t, pool)
	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
	require.Empty(t, devices(t, directory), "want: no device is left")
	end(t, pool)

	// Not formatted again, whatever is asked.
	for _, bytes := range []int64{0, small, mib} {
		again := ensure(t, kind, directory, bytes)
		holds(t, filepath.Join(again.Directory(), "b"), "text")
		end(t, again)
	}

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the image and the mount point")
}

func TestDeletedSpaceReturnsToTheHost(t *testing.T) {
	onEach(t, testDeletedSpaceReturnsToTheHost)
}

func testDeletedSpaceReturnsToTheHost(t *testing.T, kind string) {
	pool := ensure(t, kind, newDirectory(t), small)
	before := allocated(t, pool.Image())
	file := filepath.Join(pool.Directory(), "bulk")

	write(t, file, string(make([]byte, 100*mib))+"x")
	require.Greater(t, allocated(t, pool.Image()), before+90*mib, "want: the written data is allocated on the host")
	require.NoError(t, os.Remove(file))

	root, err := os.Open(pool.Directory())
	require.NoError(t, err)

	defer root.Close() // before the pool is unmounted

	require.Eventually(t, func() bool {
		require.NoError(t, unix.Syncfs(int(root.Fd())))

		return allocated(t, pool.Image()) < before+10*mib
	}, time.Minute, 10*time.Millisecond, "want: the deleted data is freed on the host")
}

func TestReflinkingDirectoryIsThePool(t *testing.T) {
	namespace.NeedRoot(t)

	reflinking := testpool.Reflink(t, small)
	for _, bytes := range []int64{0, small} {
		pool := ensure(t, filesystem.XFS, reflinking, bytes)
		require.Equal(t, reflinking, pool.Directory())
		require.Empty(t, pool.Image(), "want: there is no image in a directory that is the pool")
		end(t, pool)
	}

	entries, err := os.ReadDir(reflinking)
	require.NoError(t, err)
	require.Empty(t, entries, "want: nothing is made in the directory")

	missing := newDirectory(t)
	require.Equal(t, missing, ensure(t, filesystem.XFS, missing, 0).Directory())
	require.NoDirExists(t, missing)
}

// TestAPoolWithoutReflinksIsReported, such as an image that was made by hand.
func TestAPoolWithoutReflinksIsReported(t *testing.T) {
	const warning = "was made without reflinks"

	directory := newDirectory(t)
	log := &bytes.Buffer{}
	options := embedded.Options{Directory: directory, Bytes: small, Filesystem: filesystem.XFS, Log: slog.New(slog.NewTextHandler(log, nil))}

	made, err := embedded.Ensure(t.Context(), options)
	require.NoError(t, err)
	end(t, made)
	require.NotContains(t, log.String(), warning)

	tool(t, "mkfs.xfs", "-q", "-f", "-m", "reflink=0", "-s", "size=4096", filepath.Join(directory, "pool.img"))

	found, err := embedded.Ensure(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { end(t, found) })
	require.Contains(t, log.String(), warning)
}

// TestExistingImageKeepsItsFilesystem whatever a new one would get.
func TestExistingImageKeepsItsFilesystem(t *testing.T) {
	onEach(t, testExistingImageKeepsItsFilesystem)
}

func testExistingImageKeepsItsFilesystem(t *testing.T, kind string) {
	others := slices.DeleteFunc(embedded.Filesystems(), func(name string) bool { return name == kind })
	directory := newDirectory(t)
	pool := ensure(t, kind, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")

	for _, asked := range append(others, "") {
		// Mounted, and after a reboot; with growth, which is another call for each.
		for _, reboot := range []bool{false, true} {
			image := pool.Image()

			if reboot {
				end(t, pool)
			}

			pool = ensure(t, asked, directory, size(t, image)+16*mib)
			holds(t, filepath.Join(pool.Directory(), "data"), "kept")
			require.Equal(t, kind, mountedType(t, pool.Directory()))
		}
	}
}

func TestUnknownFilesystemIsRefused(t *testing.T) {
	directory := emptyDirectory(t)
	refused(t, "ext4", directory, small, filesystem.ErrUnknown, "ext4", "xfs, btrfs")
	require.NoFileExists(t, filepath.Join(directory, "pool.img"))
}

// TestEarlierImageIsUsed, also where none would be made by now.
func TestEarlierImageIsUsed(t *testing.T) { onEach(t, testEarlierImageIsUsed) }

func testEarlierImageIsUsed(t *testing.T, kind string) {
	namespace.NeedRoot(t)

	directory := testpool.Reflink(t, larger)
	image, err := os.Create(filepath.Join(directory, "pool.img"))
	require.NoError(t, err)
	require.NoError(t, image.Truncate(small))
	require.NoError(t, image.Close())
	makeFilesystem(t, kind, image.Name())

	pool := ensure(t, kind, directory, small)
	require.Equal(t, image.Name(), pool.Image())
}

func TestMountSurvivesItsDriver(t *testing.T) { onEach(t, testMountSurvivesItsDriver) }

func testMountSurvivesItsDriver(t *testing.T, kind string) {
	directory := newDirectory(t)
	died(t, kind, directory, small)

	inside := filepath.Join(directory, "mounted")
	require.True(t, mounted(t, inside), "want: it is mounted")
	write(t, filepath.Join(inside, "data"), "kept")

	before := devices(t, directory)
	pool := ensure(t, kind, directory, small)
	require.Equal(t, before, devices(t, directory), "adopted, not attached again")
	holds(t, filepath.Join(pool.Directory(), "data"), "kept")

	// A crash of the machine, as far as the image is concerned: there is no unmount,
	// so that the log has to be replayed.
	crashed := newDirectory(t)
	require.NoError(t, os.Mkdir(crashed, 0o700))
	write(t, filepath.Join(inside, "late"), "in the log")
	tool(t, "cp", "--sparse=always", pool.Image(), filepath.Join(crashed, "pool.img"))

	end(t, pool)

	copied := ensure(t, kind, crashed, 0)
	holds(t, filepath.Join(copied.Directory(), "data"), "kept")
	holds(t, filepath.Join(copied.Directory(), "late"), "in the log")
}

func TestPoolInUseStaysAndIsAdopted(t *testing.T) { onEach(t, testPoolInUseStaysAndIsAdopted) }

func testPoolInUseStaysAndIsAdopted(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool, log := ensureLogged(t, kind, directory, small)

	open, err := os.Create(filepath.Join(pool.Directory(), "open"))
	require.NoError(t, err)

	defer open.Close()

	end(t, pool)
	require.Contains(t, log.String(), stays)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: it is mounted")

	again := ensure(t, kind, directory, small)
	require.NoError(t, open.Close())

	// A published directory holds the filesystem, but not its mount.
	bound := filepath.Join(filepath.Dir(directory), "target")
	require.NoError(t, os.Mkdir(bound, 0o700))
	require.NoError(t, unix.Mount(again.Directory(), bound, "", unix.MS_BIND, ""))
	end(t, again)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: it is mounted")

	// What has the device open keeps that alone.
	third := ensure(t, kind, directory, small)
	device := devices(t, directory)[0]
	reader, err := os.Open(device.Path)
	require.NoError(t, err)
	require.NoError(t, unix.Unmount(bound, 0))
	end(t, third)
	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
	require.Len(t, devices(t, directory), 1, "want: the device stays while it is open")
	require.NoError(t, reader.Close())
	require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).AwaitDetached(t.Context(), device.Number, device.Sequence))
	require.Empty(t, devices(t, directory), "want: no device is left")
}

func TestInterruptedCreationIsCompleted(t *testing.T) { onEach(t, testInterruptedCreationIsCompleted) }

func testInterruptedCreationIsCompleted(t *testing.T, kind string) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	write(t, filepath.Join(directory, "pool.img.making"), "half a filesystem")

	pool := ensure(t, kind, directory, small)
	require.True(t, mounted(t, pool.Directory()), "want: it is mounted")
	require.NoFileExists(t, filepath.Join(directory, "pool.img.making"))

	// Nor is anything left of a making that fails, or is called off.
	failed := newDirectory(t)
	refused(t, kind, failed, mib, filesystem.ErrTooSmall)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := embedded.Ensure(ctx, embedded.Options{Directory: failed, Bytes: small})
	require.ErrorIs(t, err, context.Canceled)

	entries, err := os.ReadDir(failed)
	require.NoError(t, err)
	require.Empty(t, entries, "want: nothing is left of the failed pool")
}

func TestWithoutPrivilege(t *testing.T) {
	if directory := os.Getenv("TOUCHSTONE_TEST_AS_NOBODY"); directory != "" {
		asNobody(t, directory)

		return
	}

	const otherUser = 65534

	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.NoError(t, os.Chown(directory, otherUser, otherUser))

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
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Contains(t, string(output), "--- PASS")
	}

	run("refusal")

	pool := ensure(t, filesystem.XFS, directory, small)
	run("use")
	holds(t, filepath.Join(pool.Directory(), "foreign"), "written")

	end(t, pool)
	run("refusal")
}

// asNobody is what a controller without privilege sees.
func asNobody(t *testing.T, directory string) {
	t.Helper()

	pool, err := embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: small, Filesystem: filesystem.XFS})
	if os.Getenv("TOUCHSTONE_TEST_EXPECT") == "refusal" {
		require.ErrorIs(t, err, embedded.ErrPrivilege)
		errtext.Require(t, err, "mode node or all")

		return
	}

	require.NoError(t, err)
	write(t, filepath.Join(pool.Directory(), "foreign"), "written")
	require.NoError(t, pool.Close(t.Context()))
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "it is not ours to unmount")
}
