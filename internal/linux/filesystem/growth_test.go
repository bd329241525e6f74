package filesystem_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	gibibyte = int64(1) << 30
	tebibyte = int64(1) << 40
)

// ext4Super is the part of a superblock that says how far an ext4 can grow.
type ext4Super struct {
	blocks                               uint64
	compat, incompat, roCompat           uint32
	groupBlocks, groupInodes, logCluster uint32
	reserved, descriptor                 uint16
}

func (s ext4Super) image() *bytes.Reader {
	image := make([]byte, 128<<10)
	super := image[1024:]
	binary.LittleEndian.PutUint32(super[0x04:], uint32(s.blocks))
	binary.LittleEndian.PutUint32(super[0x18:], 2)
	binary.LittleEndian.PutUint32(super[0x1c:], s.logCluster)
	binary.LittleEndian.PutUint32(super[0x20:], s.groupBlocks)
	binary.LittleEndian.PutUint32(super[0x28:], s.groupInodes)
	binary.LittleEndian.PutUint16(super[0x38:], 0xef53)
	binary.LittleEndian.PutUint32(super[0x5c:], s.compat)
	binary.LittleEndian.PutUint32(super[0x60:], s.incompat)
	binary.LittleEndian.PutUint32(super[0x64:], s.roCompat)
	binary.LittleEndian.PutUint16(super[0xce:], s.reserved)
	binary.LittleEndian.PutUint16(super[0xfe:], s.descriptor)
	binary.LittleEndian.PutUint32(super[0x150:], uint32(s.blocks>>32))

	return bytes.NewReader(image)
}

func TestAnExt4GrowsAsFarAsItsDescriptorsAllow(t *testing.T) {
	t.Parallel()

	const with64Bit, metaBG, bigalloc = 0x80, 0x10, 0x200

	usual := ext4Super{
		blocks: 16384, compat: 0x10, incompat: with64Bit, groupBlocks: 32768, groupInodes: 16384, reserved: 7, descriptor: 64,
	}

	for name, test := range map[string]struct {
		change func(s *ext4Super)
		limit  int64
		reason string
	}{
		"64 MiB":          {func(*ext4Super) {}, 64 * gibibyte, "group descriptors"},
		"nothing is kept": {func(s *ext4Super) { s.reserved = 0 }, 8 * gibibyte, "group descriptors"},
		"512 GiB of 512 MiB": {
			func(s *ext4Super) { s.blocks, s.reserved = 1<<27, 0 }, 512 * gibibyte, "group descriptors",
		},
		"a table that is begun": {func(s *ext4Super) { s.blocks, s.reserved = 1<<27+1, 0 }, 520 * gibibyte, "group descriptors"},
		"descriptors of 32 bytes": {
			func(s *ext4Super) { s.incompat, s.descriptor = 0, 0 }, 128 * gibibyte, "group descriptors",
		},
		"small groups": {func(s *ext4Super) { s.groupBlocks, s.reserved = 1024, 255 }, 64 * gibibyte, "group descriptors"},
		"without 64bit": {
			func(s *ext4Super) { s.incompat, s.reserved, s.groupInodes = 0, 1024, 8192 }, 16*tebibyte - 4096, "64bit",
		},
		"many inodes": {
			func(s *ext4Super) { s.blocks, s.reserved, s.groupInodes = 15<<28, 1024, 32768 }, 16*tebibyte - 128*mebibyte, "inodes",
		},
		"descriptors in all groups": {
			func(s *ext4Super) { s.incompat, s.groupInodes = with64Bit|metaBG, 8192 }, 64*tebibyte - 128*mebibyte, "inodes",
		},
		"bigalloc": {func(s *ext4Super) { s.roCompat, s.logCluster = bigalloc, 6 }, 64*mebibyte + 60<<10, "bigalloc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			super := usual
			test.change(&super)

			require.NoError(t, filesystem.CheckGrowth(super.image(), 4096), "no shrinking is asked for")
			require.NoError(t, filesystem.CheckGrowth(super.image(), test.limit))
			require.NoError(t, filesystem.CheckGrowth(super.image(), test.limit+4095), "less than a block")

			err := filesystem.CheckGrowth(super.image(), test.limit+4096)
			require.ErrorIs(t, err, filesystem.ErrGrowLimit)
			require.ErrorIs(t, err, errdefs.ErrOutOfRange)
			errtext.Require(t, err, test.reason)
		})
	}
}

func TestInvalidSuperblockHasNoGrowthLimit(t *testing.T) {
	t.Parallel()

	usual := ext4Super{blocks: 16384, groupBlocks: 32768, groupInodes: 16384, reserved: 7}

	for name, change := range map[string]func(s *ext4Super){
		"no blocks":       func(s *ext4Super) { s.blocks = 0 },
		"no groups":       func(s *ext4Super) { s.groupBlocks = 0 },
		"no inodes":       func(s *ext4Super) { s.groupInodes = 0 },
		"no descriptors":  func(s *ext4Super) { s.incompat = 0x80 },
		"large clusters":  func(s *ext4Super) { s.roCompat, s.logCluster = 0x200, 60 },
		"too many blocks": func(s *ext4Super) { s.incompat, s.blocks, s.descriptor = 0x80, 1<<63, 64 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			super := usual
			change(&super)
			require.ErrorIs(t, filesystem.CheckGrowth(super.image(), gibibyte), filesystem.ErrNoSuperblock)
		})
	}
}

// TestAnExt4GrowsToItsLimit compares the limit with what mkfs and resize2fs do.
func TestAnExt4GrowsToItsLimit(t *testing.T) {
	for name, test := range map[string]struct {
		first, limit int64
		options      string
	}{
		"the smallest":          {first: 256 << 10, limit: 8 * gibibyte},
		"8 MiB":                 {first: 8 * mebibyte, limit: 8 * gibibyte},
		"64 MiB":                {first: 64 * mebibyte, limit: 64 * gibibyte},
		"without resize_inode":  {first: 64 * mebibyte, limit: 8 * gibibyte, options: "-O ^resize_inode"},
		"space for descriptors": {first: 64 * mebibyte, limit: 256 * gibibyte, options: "-E resize=256G"},
	} {
		t.Run(name, func(t *testing.T) {
			run := &recorder{}
			ext4 := byName(t, filesystem.Ext4)
			idle, err := filesystem.ByName(filesystem.Ext4, run)
			require.NoError(t, err)

			image := newImage(t, test.first)
			require.NoError(t, ext4.Make(t.Context(), image.Name(), filesystem.MakeOptions{Options: strings.Fields(test.options)}))

			// It does not grow in part, nor is a tool needed to know that.
			require.NoError(t, image.Truncate(test.limit+4096))
			require.ErrorIs(t, idle.GrowUnmounted(t.Context(), image.Name()), filesystem.ErrGrowLimit)
			require.ErrorIs(t, filesystem.CheckGrowth(image, test.limit+4096), filesystem.ErrGrowLimit)
			require.Empty(t, run.commands, "want: no tool runs for a growth beyond the limit")

			require.NoError(t, image.Truncate(test.limit))
			require.NoError(t, filesystem.CheckGrowth(image, test.limit))
			require.NoError(t, ext4.GrowUnmounted(t.Context(), image.Name()))

			size, err := ext4.SizeBytes(image)
			require.NoError(t, err)
			require.Equal(t, test.limit, size, "want: the filesystem keeps the size of the limit")

			verdict, err := ext4.ForceCheck(t.Context(), image.Name())
			require.NoError(t, err)
			require.Equal(t, filesystem.Clean, verdict.State, verdict.Detail)
			require.ErrorIs(t, filesystem.CheckGrowth(image, test.limit+4096), filesystem.ErrGrowLimit, "growing moves no limit")
		})
	}
}

// TestXFSAndBtrfsGrowToAnySize has a factor and a size at which an ext4 needs descriptors of its own.
func TestXFSAndBtrfsGrowToAnySize(t *testing.T) {
	for _, name := range []string{filesystem.XFS, filesystem.Btrfs} {
		image := newFilesystem(t, byName(t, name), imageSize)
		require.NoError(t, filesystem.CheckGrowth(image, 1<<62), name)
	}

	blank, err := os.Open(os.DevNull)
	require.NoError(t, err)

	defer blank.Close()

	require.NoError(t, filesystem.CheckGrowth(blank, 1<<62), "what will be made then has that size from the start")
}

// TestAbortedResizeIsDamage has resize2fs print what it does when it gives up in the middle.
func TestAbortedResizeIsDamage(t *testing.T) {
	ext4 := byName(t, filesystem.Ext4)
	image := newImage(t, 64*mebibyte)
	require.NoError(t, ext4.Make(t.Context(), image.Name(), filesystem.MakeOptions{}))
	require.NoError(t, image.Truncate(128*mebibyte))

	run := &recorder{result: filesystem.Result{ExitCode: 1, Output: `Resizing the filesystem on v.img to 17039360 (4k) blocks.
resize2fs: Illegal doubly indirect block found while trying to resize v.img
Please run 'e2fsck -fy v.img' to fix the filesystem
after the aborted resize operation.
`}}
	aborts, err := filesystem.ByName(filesystem.Ext4, run)
	require.NoError(t, err)

	err = aborts.GrowUnmounted(t.Context(), image.Name())
	require.ErrorIs(t, err, filesystem.ErrDamaged)
	errtext.Require(t, err, "aborted")
	errtext.Require(t, err, "Illegal doubly indirect block")
	require.Len(t, run.commands, 1, "no check, no second attempt")
}

// TestPartialGroupStaysUnused at the end of a device: it stays unused, and no permission is needed
// for that.
func TestPartialGroupStaysUnused(t *testing.T) {
	needRoot(t)

	const group = 128 * mebibyte

	ext4 := byName(t, filesystem.Ext4)

	for _, rest := range []int64{4096, mebibyte, 2 * mebibyte} {
		for _, groups := range []int64{1, 2, 3} {
			image := newFilesystem(t, ext4, 64*mebibyte)
			require.NoError(t, image.Truncate(groups*group+rest))
			require.NoError(t, ext4.GrowUnmounted(t.Context(), image.Name()))

			use := mount(t, ext4, image, loop.AttachOptions{})
			directory := use.open(t)
			require.NoError(t, ext4.GrowMounted(t.Context(), directory, groups*group+rest), "%d groups and %d bytes", groups, rest)
			require.NoError(t, directory.Close())
			use.unmount(t)

			size, err := ext4.SizeBytes(image)
			require.NoError(t, err)
			require.Contains(t, []int64{groups * group, groups*group + rest}, size)
		}
	}
}
