package filesystem_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
)

// copyOf returns a copy of an image, of which the source may be mounted.
func copyOf(tb testing.TB, image *os.File) *os.File {
	tb.Helper()

	_, err := image.Seek(0, io.SeekStart)
	require.NoError(tb, err)

	made, err := os.Create(filepath.Join(tb.TempDir(), "copy.img"))
	require.NoError(tb, err)
	tb.Cleanup(func() { made.Close() })

	output, err := child.Command(tb, "cp", "--sparse=always", image.Name(), made.Name()).CombinedOutput()
	require.NoError(tb, err, "%s", output)

	return made
}

func uuidOf(tb testing.TB, image *os.File) string {
	tb.Helper()

	found, err := filesystem.UUID(image)
	require.NoError(tb, err)

	return found
}

// requireCheck also asks those checks that believe no superblock.
func requireCheck(tb testing.TB, fs filesystem.Filesystem, path string) {
	tb.Helper()
	requireState(tb, filesystem.Clean, fs, path)

	if fs.Name() == filesystem.Ext4 {
		output, err := child.Command(tb, "e2fsck", "-fn", path).CombinedOutput()
		require.NoError(tb, err, "%s", output)
	}
}

func TestUUIDMatchesBlkid(t *testing.T) {
	t.Parallel()

	for name, fs := range filesystems(t) {
		image := newFilesystem(t, fs, imageSize)

		output, err := child.Command(t, "blkid", "-p", "-s", "UUID", "-o", "value", image.Name()).Output()
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(output)), uuidOf(t, image), name)
	}

	_, err := filesystem.UUID(newImage(t, imageSize))
	require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
}

// variant is a filesystem with options of which its superblock depends.
type variant struct {
	fs      string
	options []string
}

func variants() map[string]variant {
	return map[string]variant{
		"ext4":                       {fs: filesystem.Ext4},
		"ext4 without checksums":     {filesystem.Ext4, []string{"-O", "^metadata_csum"}},
		"ext4 with older checksums":  {filesystem.Ext4, []string{"-O", "^metadata_csum,uninit_bg"}},
		"ext4 with a seed":           {filesystem.Ext4, []string{"-O", "metadata_csum_seed"}},
		"xfs":                        {fs: filesystem.XFS},
		"xfs of three groups":        {filesystem.XFS, []string{"-d", "agcount=3"}},
		"btrfs":                      {fs: filesystem.Btrfs},
		"btrfs with other checksums": {filesystem.Btrfs, []string{"--csum", "sha256"}},
	}
}

// TestCopiesMountBesideTheirSource has the source mounted and being written all
// the time, its copy, and the copy's copy.
func TestCopiesMountBesideTheirSource(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for name, v := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fs, source := byName(t, v.fs), newImage(t, imageSize)
			require.NoError(t, fs.Make(t.Context(), source.Name(), filesystem.MakeOptions{Options: v.options}))

			former := uuidOf(t, source)
			mounted := mount(t, fs, source, loop.AttachOptions{})
			sum := mounted.write(t)

			copied, latest := source, mounted
			for range 2 {
				// The copy is point-in-time, as one that shares blocks is.
				require.NoError(t, filesystem.Freeze(latest.openToRead(t)))

				copied = copyOf(t, copied)

				require.NoError(t, filesystem.Thaw(latest.openToRead(t)))
				replay(t, fs, copied)

				wanted := uuid.NewString()
				require.NoError(t, fs.SetUUID(t.Context(), copied.Name(), wanted))
				require.Equal(t, wanted, uuidOf(t, copied))
				requireCheck(t, fs, copied.Name())

				before := modified(t, copied)
				require.NoError(t, fs.SetUUID(t.Context(), copied.Name(), wanted))
				require.Equal(t, before, modified(t, copied))

				latest = mount(t, fs, copied, loop.AttachOptions{})
				latest.requireData(t, sum)
				require.NoError(t, os.WriteFile(filepath.Join(latest.directory, "own"), []byte("x"), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(mounted.directory, wanted), []byte("x"), 0o600))
			}

			require.Equal(t, former, uuidOf(t, source))
		})
	}
}

// TestCopiesOfACrashedFilesystem have a log to be replayed, while what they are of is
// mounted still.
func TestCopiesOfACrashedFilesystem(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for _, name := range []string{filesystem.Ext4, filesystem.XFS} {
		fs := byName(t, name)
		source := newFilesystem(t, fs, imageSize)
		mounted := mount(t, fs, source, loop.AttachOptions{})
		sum := mounted.write(t)
		mounted.crash(t)

		copied, wanted := copyOf(t, source), uuid.NewString()
		require.ErrorIs(t, fs.SetUUID(t.Context(), copied.Name(), wanted), filesystem.ErrNotClean)
		replay(t, fs, copied)
		require.NoError(t, fs.SetUUID(t.Context(), copied.Name(), wanted))
		requireCheck(t, fs, copied.Name())

		beside := mount(t, fs, copied, loop.AttachOptions{})
		beside.requireData(t, sum)
	}
}

const block = 4096

// blocks are those of an image that hold anything, by their offset. The rest of
// it would only take memory.
type blocks map[int64][]byte

func content(tb testing.TB, image *os.File) blocks {
	tb.Helper()

	held := blocks{}
	descriptor := int(image.Fd())

	for offset := int64(0); ; offset += block {
		start, err := unix.Seek(descriptor, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return held
		}

		require.NoError(tb, err)

		offset = start / block * block
		data := make([]byte, block)
		_, err = image.ReadAt(data, offset)
		require.NoError(tb, err)

		if !bytes.Equal(data, make([]byte, block)) {
			held[offset] = data
		}
	}
}

// at is what an image has there.
func (b blocks) at(offset int64) []byte {
	if data, ok := b[offset]; ok {
		return data
	}

	return make([]byte, block)
}

// changed are the offsets, in order, at which other differs.
func (b blocks) changed(other blocks) []int64 {
	either := maps.Clone(b)
	maps.Copy(either, other)

	return slices.DeleteFunc(slices.Sorted(maps.Keys(either)), func(offset int64) bool {
		return bytes.Equal(b.at(offset), other.at(offset))
	})
}

// replay is what has to be done with a copy of what was mounted.
func replay(tb testing.TB, fs filesystem.Filesystem, image *os.File) {
	tb.Helper()

	verdict, err := fs.Check(tb.Context(), image.Name())
	require.NoError(tb, err)

	if verdict.State == filesystem.NeedsReplay {
		device, directory := attach(tb, image, loop.AttachOptions{}), tb.TempDir()
		require.NoError(tb, unix.Mount(device.Path, directory, fs.Name(), 0, strings.Join(fs.DuplicateUUIDFlags(), ",")))
		require.NoError(tb, unix.Unmount(directory, 0))
		detach(tb, device)

		verdict, err = fs.Check(tb.Context(), image.Name())
		require.NoError(tb, err)
	}

	require.Contains(tb, []filesystem.State{filesystem.Clean, filesystem.Repaired}, verdict.State, "%s", verdict.Detail)
}

func modified(tb testing.TB, image *os.File) time.Time {
	tb.Helper()

	info, err := image.Stat()
	require.NoError(tb, err)

	return info.ModTime()
}

// TestUUIDIsOneBlock shows why a crash finds the one UUID or the other.
func TestUUIDIsOneBlock(t *testing.T) {
	t.Parallel()

	for _, name := range []string{filesystem.Ext4, filesystem.Btrfs} {
		fs := byName(t, name)
		image := newFilesystem(t, fs, imageSize)
		before := content(t, image)
		require.NoError(t, fs.SetUUID(t.Context(), image.Name(), uuid.NewString()))
		require.Len(t, before.changed(content(t, image)), 1, name)
	}
}

func TestUUIDChangeIsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			blank := newImage(t, imageSize)
			require.ErrorIs(t, fs.SetUUID(t.Context(), blank.Name(), uuid.NewString()), filesystem.ErrNoSuperblock)

			image := newFilesystem(t, fs, imageSize)
			require.Error(t, fs.SetUUID(t.Context(), image.Name(), "no UUID"), "SetUUID with what is no UUID")

			damaged := copyOf(t, image)
			// In the superblock of each of them, and of no meaning but its sum.
			for _, at := range []int64{0xfe, 1024 + 0x78 + 1, 65536 + 0x12b + 1} {
				_, err := damaged.WriteAt([]byte{1}, at)
				require.NoError(t, err)
			}

			before := modified(t, damaged)
			require.ErrorIs(t, fs.SetUUID(t.Context(), damaged.Name(), uuid.NewString()), filesystem.ErrNotClean)
			require.Equal(t, before, modified(t, damaged))

			used := mount(t, fs, image, loop.AttachOptions{})
			require.ErrorIs(t, fs.SetUUID(t.Context(), used.device.Path, uuid.NewString()), filesystem.ErrInUse)
			require.ErrorIs(t, fs.SetUUID(t.Context(), image.Name(), uuid.NewString()), filesystem.ErrInUse)
		})
	}
}

// dying is a Runner whose tool does its work, of which the disk has got but a
// part when the power fails: the rest of what is in lost stays as it was.
type dying struct {
	filesystem.Runner

	tool string
	lose func()
}

func (d *dying) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	if command.Tool != d.tool {
		return d.Runner.Run(ctx, command)
	}

	if d.lose == nil {
		return filesystem.Result{}, errRecorded
	}

	if _, err := d.Runner.Run(ctx, command); err != nil {
		return filesystem.Result{}, err
	}

	d.lose()

	return filesystem.Result{}, errRecorded
}

// TestXFSUUIDIsFinished ends the change of an XFS's UUID between and amid its
// steps.
func TestXFSUUIDIsFinished(t *testing.T) {
	t.Parallel()
	needRoot(t)

	fs, source := byName(t, filesystem.XFS), newFilesystem(t, byName(t, filesystem.XFS), imageSize)
	used := mount(t, fs, source, loop.AttachOptions{})
	sum := used.write(t)
	used.unmount(t)

	before, wanted := content(t, source), uuid.NewString()

	interrupt := func(t *testing.T, lose func(image *os.File)) *os.File {
		t.Helper()

		image := copyOf(t, source)
		runner := &dying{Runner: filesystem.NewRunner(), tool: "xfs_db"}

		if lose != nil {
			runner.lose = func() { lose(image) }
		}

		dies, err := filesystem.ByName(filesystem.XFS, runner)
		require.NoError(t, err)
		require.ErrorIs(t, dies.SetUUID(t.Context(), image.Name(), wanted), errRecorded)
		require.Equal(t, wanted, uuidOf(t, image))

		return image
	}

	finish := func(t *testing.T, image *os.File) {
		t.Helper()
		require.NoError(t, fs.SetUUID(t.Context(), image.Name(), wanted))
		require.Equal(t, wanted, uuidOf(t, image))
		requireCheck(t, fs, image.Name())

		again := mount(t, fs, image, loop.AttachOptions{})
		again.requireData(t, sum)
		require.NoError(t, os.WriteFile(filepath.Join(again.directory, "more"), []byte("x"), 0o600))
		again.unmount(t)
		requireCheck(t, fs, image.Name())
	}

	t.Run("before the log", func(t *testing.T) {
		image := interrupt(t, nil)
		// A detection meanwhile reports it.
		requireState(t, filesystem.Damaged, fs, image.Name())
		finish(t, image)
	})
	t.Run("amid the log", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))

		for range 3 {
			finish(t, interrupt(t, func(image *os.File) { restoreSome(t, image, before, random.Float64(), random) }))
		}
	})
	t.Run("amid the superblocks", func(t *testing.T) {
		image := copyOf(t, source)
		require.NoError(t, fs.SetUUID(t.Context(), image.Name(), wanted))

		last := lastSuperblock(t, before)
		_, err := image.WriteAt(before.at(last), last)
		require.NoError(t, err)
		finish(t, image)
	})
}

// restoreSome gives each changed block but the first superblock back what it had
// before, with the probability.
func restoreSome(tb testing.TB, image *os.File, before blocks, probability float64, random *rand.Rand) {
	tb.Helper()

	for _, offset := range before.changed(content(tb, image)) {
		if offset == 0 || random.Float64() >= probability {
			continue
		}

		_, err := image.WriteAt(before.at(offset), offset)
		require.NoError(tb, err)
	}
}

func lastSuperblock(tb testing.TB, image blocks) int64 {
	tb.Helper()

	last := int64(0)

	for offset, data := range image {
		if bytes.HasPrefix(data, []byte("XFSB")) {
			last = max(last, offset)
		}
	}

	require.Positive(tb, last, "want: the image has a superblock")

	return last
}
