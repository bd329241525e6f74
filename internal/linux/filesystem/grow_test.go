package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func TestGrowMounted(t *testing.T) {
	needRoot(t)

	for _, to := range []int64{640 * mebibyte, 400*mebibyte + 4096} {
		for name, fs := range filesystems(t) {
			t.Run(name, func(t *testing.T) {
				image := newFilesystem(t, fs, imageSize)
				use := mount(t, fs, image, loop.AttachOptions{})
				sum := use.write(t)
				before := capacity(t, use.directory)

				directory := use.open(t)
				defer directory.Close()

				// What is there already needs no permission either.
				require.NoError(t, fs.GrowMounted(t.Context(), directory, imageSize))

				require.NoError(t, image.Truncate(to))

				bytes, err := loop.NewLoops(loop.LoopsOptions{}).Resize(use.device.Number)
				require.NoError(t, err)
				require.Equal(t, to, bytes, "want: the device has the new size")

				err = fs.GrowMounted(t.Context(), directory, bytes)
				if errors.Is(err, filesystem.ErrGrowRefused) && fs.Name() == filesystem.Ext4 {
					require.ErrorIs(t, err, unix.EPERM)
					t.Skip("the kernel refuses to grow a mounted ext4: CAP_SYS_RESOURCE is missing here")
				}

				require.NoError(t, err)

				grown := capacity(t, use.directory)
				require.Greater(t, grown, before+(to-imageSize)*8/10, "want: the mounted filesystem has grown")

				// Again, and to what would be less: nothing happens.
				require.NoError(t, fs.GrowMounted(t.Context(), directory, bytes))
				require.NoError(t, fs.GrowMounted(t.Context(), directory, imageSize))
				require.Equal(t, grown, capacity(t, use.directory), "want: growing again and to less changes nothing")

				use.requireData(t, sum)
				require.NoError(t, directory.Close())
				use.unmount(t)
				requireState(t, filesystem.Clean, fs, image.Name())

				// The kernel may leave a rest unused that is too short for a group.
				now, err := fs.SizeBytes(image)
				require.NoError(t, err)
				require.LessOrEqual(t, now, to, "want: the filesystem is not larger than the device")
				require.Greater(t, now, to-mebibyte, "want: the filesystem fills the device up to one group")
			})
		}
	}
}

// TestCheckOfManyGroupsUsesFewThreads is about an XFS that was made small: its growth adds groups
// of the same size.
func TestCheckOfManyGroupsUsesFewThreads(t *testing.T) {
	needRoot(t)

	const (
		to = 50 << 30
		// most is a few threads more than with the most groups that are prefetched.
		most = 160
	)

	run := &threadCounter{Runner: filesystem.NewRunner()}
	fs, err := filesystem.ByName(filesystem.XFS, run)
	require.NoError(t, err)

	image := newFilesystem(t, fs, imageSize)
	use := mount(t, fs, image, loop.AttachOptions{})
	directory := use.open(t)
	require.NoError(t, image.Truncate(to))

	bytes, err := loop.NewLoops(loop.LoopsOptions{}).Resize(use.device.Number)
	require.NoError(t, err)
	require.NoError(t, fs.GrowMounted(t.Context(), directory, bytes))
	require.NoError(t, directory.Close())
	use.unmount(t)

	verdict, err := fs.Check(t.Context(), image.Name())
	require.NoError(t, err)
	require.Equal(t, filesystem.Clean, verdict.State, verdict.Detail)
	require.NotZero(t, run.most, "the threads of xfs_repair")
	require.LessOrEqual(t, run.most, most, "the threads of xfs_repair")
}

// threadCounter is a Runner that counts the threads of xfs_repair while it runs.
type threadCounter struct {
	filesystem.Runner

	most int
}

func (c *threadCounter) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	ended, counted := make(chan struct{}), make(chan struct{})

	go func() {
		defer close(counted)

		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
				c.most = max(c.most, threadsOf("xfs_repair"))
			}
		}
	}()

	defer func() { close(ended); <-counted }()

	return c.Runner.Run(ctx, command)
}

// threadsOf returns the number of threads of this process' child of that name, 0 without one.
func threadsOf(name string) int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range all {
		status, _ := os.ReadFile(filepath.Join(process, "status"))
		if !strings.HasPrefix(string(status), "Name:\t"+name+"\n") ||
			!strings.Contains(string(status), fmt.Sprintf("PPid:\t%d\n", os.Getpid())) {
			continue
		}

		threads, _ := os.ReadDir(filepath.Join(process, "task"))

		return len(threads)
	}

	return 0
}

// TestGrownAndCrashed has the growth in the log, and the copies of the
// superblock, but not in the superblock.
func TestGrownAndCrashed(t *testing.T) {
	needRoot(t)

	fs := byName(t, filesystem.XFS)
	image := newFilesystem(t, fs, imageSize)
	use := mount(t, fs, image, loop.AttachOptions{})
	sum := use.write(t)

	const to = imageSize + 16*mebibyte

	require.NoError(t, image.Truncate(to))

	bytes, err := loop.NewLoops(loop.LoopsOptions{}).Resize(use.device.Number)
	require.NoError(t, err)

	directory := use.open(t)
	require.NoError(t, fs.GrowMounted(t.Context(), directory, bytes))
	require.NoError(t, directory.Close())

	grown := capacity(t, use.directory)
	use.crash(t)
	use.unmount(t)
	requireState(t, filesystem.NeedsReplay, fs, image.Name())

	again := mount(t, fs, image, loop.AttachOptions{})
	again.requireData(t, sum)
	require.Equal(t, grown, capacity(t, again.directory), "want: the growth survives the crash")
	again.unmount(t)
	requireState(t, filesystem.Clean, fs, image.Name())
}

// TestGrownWithoutCopies has a growth in the superblock, but not in all copies of it: the power
// failed before they were written, and the log was replayed.
func TestGrownWithoutCopies(t *testing.T) {
	needRoot(t)

	const (
		group = imageSize / 4
		super = 4096
	)

	for name, lost := range map[string][]int64{"no copy": {1, 2, 3}, "not the last copies": {2, 3}} {
		t.Run(name, func(t *testing.T) {
			fs := byName(t, filesystem.XFS)
			image := newFilesystem(t, fs, imageSize)
			copies := make([]byte, imageSize)
			_, err := image.ReadAt(copies, 0)
			require.NoError(t, err)

			const to = imageSize + 16*mebibyte

			require.NoError(t, image.Truncate(to))

			use := mount(t, fs, image, loop.AttachOptions{})
			sum := use.write(t)
			directory := use.open(t)
			require.NoError(t, fs.GrowMounted(t.Context(), directory, to))
			require.NoError(t, directory.Close())

			grown := capacity(t, use.directory)
			use.unmount(t)
			requireState(t, filesystem.Clean, fs, image.Name())

			for _, each := range lost {
				_, err := image.WriteAt(copies[each*group:][:super], each*group)
				require.NoError(t, err)
			}

			// A copy that is overwritten is damage.
			_, err = image.WriteAt(make([]byte, super), 3*group)
			require.NoError(t, err)
			requireState(t, filesystem.Damaged, fs, image.Name())
			_, err = image.WriteAt(copies[3*group:][:super], 3*group)
			require.NoError(t, err)

			requireState(t, filesystem.NeedsReplay, fs, image.Name())
			requireExamined(t, filesystem.NeedsReplay, fs, image.Name())
			replayLog(t, fs, image)
			requireState(t, filesystem.Clean, fs, image.Name())
			requireExamined(t, filesystem.Clean, fs, image.Name())

			again := mount(t, fs, image, loop.AttachOptions{})
			again.requireData(t, sum)
			require.Equal(t, grown, capacity(t, again.directory), "want: the growth survives the crash")
			again.unmount(t)

			// A copy with a larger size is no growth.
			require.NoError(t, image.Truncate(imageSize))
			_, err = image.WriteAt(copies[:super], 0)
			require.NoError(t, err)
			requireState(t, filesystem.Damaged, fs, image.Name())
		})
	}
}

func TestGrowMountedOfAnotherFilesystemIsRefused(t *testing.T) {
	directory, err := os.Open("/proc")
	require.NoError(t, err)

	defer directory.Close()

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, fs.GrowMounted(t.Context(), directory, imageSize), filesystem.ErrOtherFilesystem)
		})
	}
}

func TestGrowUnmounted(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)

	for name, onDevice := range map[string]bool{"image": false, "device": true} {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, ext4, 64*mebibyte)
			// Once mounted, resize2fs wants a check first.
			use := mount(t, ext4, image, loop.AttachOptions{})
			sum := use.write(t)
			use.unmount(t)

			require.NoError(t, image.Truncate(512*mebibyte))

			path := image.Name()
			if onDevice {
				path = attach(t, image, loop.AttachOptions{}).Path
			}

			require.NoError(t, ext4.GrowUnmounted(t.Context(), path))
			requireState(t, filesystem.Clean, ext4, path)

			file, err := os.Open(path)
			require.NoError(t, err)

			defer file.Close()

			bytes, err := ext4.SizeBytes(file)
			require.NoError(t, err)
			require.Equal(t, int64(512*mebibyte), bytes, "want: the filesystem has grown to the size of the image")

			run := &recorder{}
			idle, err := filesystem.ByName(filesystem.Ext4, run)
			require.NoError(t, err)
			require.NoError(t, idle.GrowUnmounted(t.Context(), path))
			require.Empty(t, run.commands, "it has that size already")

			if !onDevice {
				again := mount(t, ext4, image, loop.AttachOptions{})
				again.requireData(t, sum)
				again.unmount(t)
			}
		})
	}
}

func TestGrowUnmountedAfterACrash(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)
	use := mount(t, ext4, image, loop.AttachOptions{})
	sum := use.write(t)
	use.crash(t)
	use.unmount(t)

	require.NoError(t, image.Truncate(128*mebibyte))
	require.NoError(t, ext4.GrowUnmounted(t.Context(), image.Name()))
	requireState(t, filesystem.Clean, ext4, image.Name())

	again := mount(t, ext4, image, loop.AttachOptions{})
	again.requireData(t, sum)
	again.unmount(t)
}

func TestGrowUnmountedOfADamagedFilesystem(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)
	use := mount(t, ext4, image, loop.AttachOptions{})
	use.write(t)
	use.unmount(t)
	overwriteMetadata(t, image)
	require.NoError(t, image.Truncate(128*mebibyte))

	require.ErrorIs(t, ext4.GrowUnmounted(t.Context(), image.Name()), filesystem.ErrDamaged)
}

func TestXFSAndBtrfsGrowOnlyMounted(t *testing.T) {
	for _, name := range []string{filesystem.XFS, filesystem.Btrfs} {
		require.ErrorIs(t, byName(t, name).GrowUnmounted(t.Context(), "/nowhere"), filesystem.ErrNeedsMount)
	}
}

func capacity(t *testing.T, directory string) int64 {
	t.Helper()

	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(directory, &stat))

	return int64(stat.Blocks) * stat.Bsize
}

func allocated(t *testing.T, file *os.File) int64 {
	t.Helper()

	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(int(file.Fd()), &stat))

	return stat.Blocks * 512
}
