package filesystem_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
)

func TestALostSuperblockIsDamage(t *testing.T) {
	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, fs, imageSize)

			// All offsets at which one of them has its first superblock.
			_, err := image.WriteAt(make([]byte, 128<<10), 0)
			require.NoError(t, err)

			requireState(t, filesystem.Damaged, fs, image.Name())
		})
	}
}

func TestOverwrittenMetadataIsDamage(t *testing.T) {
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, fs, imageSize)
			use := mount(t, fs, image, loop.AttachOptions{})
			use.write(t)
			use.unmount(t)

			overwriteMetadata(t, image)

			name, err := filesystem.Detect(image)
			require.NoError(t, err)
			require.Equal(t, fs.Name(), name, "the superblock is to be left whole")

			verdict := requireState(t, filesystem.Damaged, fs, image.Name())
			require.LessOrEqual(t, len(verdict.Detail), 4<<10, "want: the detail is limited")
			require.NotRegexp(t, `(^|; )(Phase \d|- )`, verdict.Detail, "what was found, and not the steps")
		})
	}
}

// overwriteMetadata writes a pattern over whatever is allocated, but the first
// superblocks.
func overwriteMetadata(t *testing.T, image *os.File) {
	t.Helper()

	info, err := image.Stat()
	require.NoError(t, err)

	garbage := bytes.Repeat([]byte{0xa5}, 4096)

	for offset := int64(0); offset < info.Size(); {
		start, err := unix.Seek(int(image.Fd()), offset, unix.SEEK_DATA)
		if err != nil {
			require.ErrorIs(t, err, unix.ENXIO)

			return
		}

		end, err := unix.Seek(int(image.Fd()), start, unix.SEEK_HOLE)
		require.NoError(t, err)

		for at := max(start, 68<<10); at+4096 <= end; at += 4096 {
			_, err := image.WriteAt(garbage, at)
			require.NoError(t, err)
		}

		offset = end
	}
}

func TestExt4RepairsWhatIsSafe(t *testing.T) {
	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)

	for _, request := range []string{"set_inode_field <2> links_count 9", "set_super_value state 0"} {
		debugfs(t, image, request)
	}

	requireState(t, filesystem.Repaired, ext4, image.Name())
	requireState(t, filesystem.Clean, ext4, image.Name())
}

func debugfs(t *testing.T, image *os.File, request string) {
	t.Helper()

	output, err := child.Command(t, "debugfs", "-w", "-R", request, image.Name()).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

func TestCheckAfterACrash(t *testing.T) {
	needRoot(t)

	for name, want := range map[string]filesystem.State{
		filesystem.Ext4: filesystem.Clean, // e2fsck replays the journal itself
		filesystem.XFS:  filesystem.NeedsReplay,
	} {
		t.Run(name, func(t *testing.T) {
			fs := byName(t, name)
			image := newFilesystem(t, fs, 320*mebibyte)
			use := mount(t, fs, image, loop.AttachOptions{})
			sum := use.write(t)
			use.crash(t)
			use.unmount(t)

			verdict, err := fs.Check(t.Context(), image.Name())
			require.NoError(t, err)

			if want == filesystem.Clean {
				require.Contains(t, []filesystem.State{filesystem.Clean, filesystem.Repaired}, verdict.State, verdict.Detail)
			} else {
				require.Equal(t, want, verdict.State, verdict.Detail)
			}

			again := mount(t, fs, image, loop.AttachOptions{})
			again.requireData(t, sum)
			again.unmount(t)
			requireState(t, filesystem.Clean, fs, image.Name())
		})
	}
}

func TestReadOnlyDeviceIsNotRepaired(t *testing.T) {
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			device := attach(t, newFilesystem(t, fs, imageSize), loop.AttachOptions{ReadOnly: true})
			requireState(t, filesystem.Clean, fs, device.Path)
		})
	}
}

func TestAReadOnlyExt4WithAJournalNeedsReplay(t *testing.T) {
	needRoot(t)

	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)
	use := mount(t, ext4, image, loop.AttachOptions{})
	use.crash(t)
	use.unmount(t)

	device := attach(t, image, loop.AttachOptions{ReadOnly: true})
	requireState(t, filesystem.NeedsReplay, ext4, device.Path)
}

func TestNoSecondToolBesideARunningOne(t *testing.T) {
	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)

	other, err := os.Open(image.Name())
	require.NoError(t, err)

	defer other.Close()

	await.Flock(t, other, unix.LOCK_EX)

	_, err = ext4.Check(t.Context(), image.Name())
	require.ErrorIs(t, err, filesystem.ErrInUse)

	require.NoError(t, image.Truncate(128*mebibyte))
	require.ErrorIs(t, ext4.GrowUnmounted(t.Context(), image.Name()), filesystem.ErrInUse)

	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	requireState(t, filesystem.Clean, ext4, image.Name())
}

func TestALockThatAChildBeingForkedHasIsAwaited(t *testing.T) {
	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)

	other, err := os.Open(image.Name())
	require.NoError(t, err)
	await.Flock(t, other, unix.LOCK_EX)
	child.CloseWhileForked(t, other, 600*time.Millisecond)

	requireState(t, filesystem.Clean, ext4, image.Name())
}

func TestFailedToolIsNoVerdict(t *testing.T) {
	image := newFilesystem(t, byName(t, filesystem.Ext4), 64*mebibyte)

	for name, run := range map[string]*recorder{
		"did not run":   {err: errRecorded},
		"usage":         {result: filesystem.Result{ExitCode: 16}},
		"cancelled":     {result: filesystem.Result{ExitCode: 32 | 1}},
		"shared object": {result: filesystem.Result{ExitCode: 128}},
		"command shell": {result: filesystem.Result{ExitCode: 127}},
	} {
		t.Run(name, func(t *testing.T) {
			ext4, err := filesystem.ByName(filesystem.Ext4, run)
			require.NoError(t, err)

			_, err = ext4.Check(t.Context(), image.Name())
			require.Error(t, err, "Check with a tool that fails")
		})
	}
}

// TestUnknownFeaturesAreNoDamage has btrfs-progs say what version 6.2 says of simple quotas.
func TestUnknownFeaturesAreNoDamage(t *testing.T) {
	image := newFilesystem(t, byName(t, filesystem.Btrfs), imageSize)

	btrfs, err := filesystem.ByName(filesystem.Btrfs, &recorder{result: filesystem.Result{
		ExitCode: 1, Output: "couldn't open because of unsupported option features (10000).\nERROR: cannot open file system\n",
	}})
	require.NoError(t, err)

	_, err = btrfs.Check(t.Context(), image.Name())
	require.ErrorIs(t, err, filesystem.ErrUnknownFeatures)
}

// TestADeviceInUseIsNotDamaged has another program claim the device after the check has begun, for a
// moment and permanently.
func TestADeviceInUseIsNotDamaged(t *testing.T) {
	needRoot(t)

	for _, name := range []string{filesystem.Ext4, filesystem.Btrfs} {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, byName(t, name), 320*mebibyte)
			device := attach(t, image, loop.AttachOptions{})
			claims := &claimer{path: device.Path}
			checked, err := filesystem.ByName(name, claims)
			require.NoError(t, err)

			claims.release = 1
			verdict, err := checked.Check(t.Context(), device.Path)
			require.NoError(t, err)
			require.Equal(t, filesystem.Clean, verdict.State, "want: a device in use is checked again until it is free")
			require.Equal(t, 2, claims.runs, "the tool found the device in use, and ran again")

			claims.release, claims.runs = -1, 0
			_, err = checked.Check(t.Context(), device.Path)
			require.ErrorIs(t, err, filesystem.ErrInUse)
			require.NoError(t, claims.held.Close())
		})
	}
}

// claimer runs the real tools, and opens the device exclusively from the first run on, until so many
// have ended.
type claimer struct {
	path          string
	release, runs int
	held          *os.File
}

func (c *claimer) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	if c.runs == 0 {
		var err error
		if c.held, err = os.OpenFile(c.path, os.O_RDONLY|unix.O_EXCL, 0); err != nil {
			return filesystem.Result{}, err
		}
	}

	c.runs++

	result, err := filesystem.NewRunner().Run(ctx, command)

	if c.runs == c.release {
		err = errors.Join(err, c.held.Close())
	}

	return result, err
}
