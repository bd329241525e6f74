package filesystem_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
)

// counter is a Runner that counts how often mkfs runs.
type counter struct {
	filesystem.Runner

	mkfs atomic.Int32
}

func (c *counter) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	if strings.HasPrefix(command.Tool, "mkfs.") {
		c.mkfs.Add(1)
	}

	return c.Runner.Run(ctx, command)
}

// maker makes filesystems of one kind with Templates.
type maker struct {
	filesystem.Filesystem

	templates filesystem.Templates
	counter   counter
}

func newMaker(tb testing.TB, name string) *maker {
	tb.Helper()

	m := &maker{counter: counter{Runner: filesystem.NewRunner()}}

	var err error

	m.Filesystem, err = filesystem.ByName(name, &m.counter)
	require.NoError(tb, err)

	return m
}

func (m *maker) new(tb testing.TB, size int64, o filesystem.MakeOptions) *os.File {
	tb.Helper()

	image := newImage(tb, size)
	require.NoError(tb, m.templates.Make(tb.Context(), m, image.Name(), o))

	return image
}

func (m *maker) requireRuns(tb testing.TB, want int) {
	tb.Helper()
	require.EqualValues(tb, want, m.counter.mkfs.Load(), "how often mkfs ran")
}

// templated are kinds of filesystems that have templates.
func templated() map[string]struct {
	fs   string
	size int64
	o    filesystem.MakeOptions
} {
	const small, middle, large = 64 * mebibyte, imageSize, 3 << 30

	type kinds = map[string]struct {
		fs   string
		size int64
		o    filesystem.MakeOptions
	}

	options := func(words string) filesystem.MakeOptions {
		return filesystem.MakeOptions{Options: strings.Fields(words)}
	}

	return kinds{
		"ext4, one group":                {filesystem.Ext4, small, options("")},
		"ext4, copies of the superblock": {filesystem.Ext4, large, options("")},
		"ext4, two copies only":          {filesystem.Ext4, large, options("-O sparse_super2")},
		"ext4, an odd size":              {filesystem.Ext4, middle + 12345, options("")},
		"ext4, tiny, no journal":         {filesystem.Ext4, 300 << 10, options("")},
		"ext4, no lazy initialization":   {filesystem.Ext4, small, filesystem.MakeOptions{NoLazyInit: true}},
		"ext4, no checksums":             {filesystem.Ext4, middle, options("-O ^metadata_csum")},
		"ext4, with a seed":              {filesystem.Ext4, middle, options("-O metadata_csum_seed,orphan_file")},
		"ext4, small groups, a label":    {filesystem.Ext4, middle, options("-O ^64bit -g 8192 -L label")},
		"ext4, no flex_bg, no extents":   {filesystem.Ext4, middle, options("-O ^flex_bg,^extents,^64bit,inline_data -m 0")},
		"xfs":                            {filesystem.XFS, middle, options("")},
		"xfs, sectors of 512":            {filesystem.XFS, middle, filesystem.MakeOptions{BlockSize: 512}},
		"xfs, three groups":              {filesystem.XFS, 1 << 30, options("-d agcount=3 -m rmapbt=1")},
		"btrfs":                          {filesystem.Btrfs, middle, options("")},
		"btrfs, mixed":                   {filesystem.Btrfs, middle, options("-M -L label")},
	}
}

// TestTemplatesMakeSoundFilesystems makes two from a template, which mkfs has made only once, and
// uses both while the first is mounted.
func TestTemplatesMakeSoundFilesystems(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for name, kind := range templated() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMaker(t, kind.fs)
			images := []*os.File{m.new(t, kind.size, kind.o), m.new(t, kind.size, kind.o), m.new(t, kind.size, kind.o)}
			m.requireRuns(t, 1)

			seen := map[string]bool{}

			for i, image := range images {
				require.False(t, seen[uuidOf(t, image)], "the UUID of image %d is another's", i)
				seen[uuidOf(t, image)] = true

				size, err := m.SizeBytes(image)
				require.NoError(t, err)

				want, err := m.SizeBytes(images[0])
				require.NoError(t, err)
				require.Equal(t, want, size, "want: the template's filesystem has the size that mkfs gives it")
				requireCheck(t, m, image.Name())
			}

			var used []*mounted

			for _, image := range images {
				use := mount(t, m, image, loop.AttachOptions{BlockSize: kind.o.BlockSize})
				used = append(used, use)

				if kind.size >= 64*mebibyte {
					use.requireData(t, use.write(t))
				}
			}

			for i, use := range used {
				use.unmount(t)
				requireCheck(t, m, images[i].Name())
			}
		})
	}
}

// TestTemplatesAllocateWhatMkfsAllocates: the log of an XFS in a thin image is reserved, and so are
// the zeros that mkfs.btrfs writes.
func TestTemplatesAllocateWhatMkfsAllocates(t *testing.T) {
	t.Parallel()

	for _, name := range filesystem.Names() {
		m := newMaker(t, name)
		first, second := m.new(t, imageSize, filesystem.MakeOptions{}), m.new(t, imageSize, filesystem.MakeOptions{})
		require.NoError(t, first.Sync())
		require.NoError(t, second.Sync())
		require.InDelta(t, allocated(t, first), allocated(t, second), mebibyte/4, name)
	}
}

// TestTemplatesSetExt4Identity compares two that were made within one second.
func TestTemplatesSetExt4Identity(t *testing.T) {
	t.Parallel()

	const (
		superOffset = 1024
		checkTime   = superOffset + 0x40
		hashSeed    = superOffset + 0xec
		makeTime    = superOffset + 0x108
	)

	read := func(image *os.File, offset int64, length int) []byte {
		data := make([]byte, length)
		_, err := image.ReadAt(data, offset)
		require.NoError(t, err)

		return data
	}

	m := newMaker(t, filesystem.Ext4)
	m.new(t, 64*mebibyte, filesystem.MakeOptions{})

	began := time.Now().Unix()
	first, second := m.new(t, 64*mebibyte, filesystem.MakeOptions{}), m.new(t, 64*mebibyte, filesystem.MakeOptions{})
	require.NotEqual(t, read(first, hashSeed, len(uuid.Nil)), read(second, hashSeed, len(uuid.Nil)), "want: each filesystem has a hash seed of its own")

	for _, at := range []int64{checkTime, makeTime} {
		require.GreaterOrEqual(t, int64(binary.LittleEndian.Uint32(read(first, at, 4))), began, "want: the time is the one of the creation")
	}
}

// TestTemplatesAgreeWithTheTools gives what mkfs has made the UUID of one made from the template,
// with the filesystem's own tool, and compares the blocks.
func TestTemplatesAgreeWithTheTools(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		fs, options string
		size        int64
		change      func(t *testing.T, path, id string)
		// differs reports whether the two may differ at an offset.
		differs func(offset int64) bool
	}{
		"ext4": {
			fs: filesystem.Ext4, size: imageSize,
			change: func(t *testing.T, path, id string) {
				t.Helper()
				run(t, "tune2fs", "-O", "metadata_csum_seed", path)
				run(t, "tune2fs", "-U", id, path)
			},
			differs: ext4Own,
		},
		"ext4 without checksums": {
			fs: filesystem.Ext4, options: "-O ^metadata_csum", size: imageSize,
			change:  func(t *testing.T, path, id string) { t.Helper(); run(t, "tune2fs", "-U", id, path) },
			differs: ext4Own,
		},
		"xfs": {
			fs: filesystem.XFS, size: imageSize,
			change:  func(t *testing.T, path, id string) { t.Helper(); run(t, "xfs_admin", "-U", id, path) },
			differs: xfsOwn,
		},
		"btrfs": {
			fs: filesystem.Btrfs, size: imageSize,
			change:  func(t *testing.T, path, id string) { t.Helper(); run(t, "btrfstune", "-M", id, path) },
			differs: btrfsOwn,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m, o := newMaker(t, test.fs), filesystem.MakeOptions{Options: strings.Fields(test.options)}
			byTool, byTemplate := m.new(t, test.size, o), m.new(t, test.size, o)
			test.change(t, byTool.Name(), uuidOf(t, byTemplate))

			want, got := content(t, byTool), content(t, byTemplate)
			for _, offset := range want.changed(got) {
				was, is := want.at(offset), got.at(offset)
				for i := range was {
					if was[i] != is[i] && !test.differs(offset+int64(i)) {
						require.Failf(t, "they differ", "at %#x: %#x and %#x", offset+int64(i), was[i], is[i])
					}
				}
			}
		})
	}
}

// within reports whether an offset is in one of the ranges, each a start and a length.
func within(offset int64, ranges ...[2]int64) bool {
	return slices.ContainsFunc(ranges, func(each [2]int64) bool { return offset >= each[0] && offset < each[0]+each[1] })
}

// ext4Own reports whether an offset is that of a time, the hash seed, the written KiB or the
// checksum in the superblock of group 0 or its copy in group 1.
func ext4Own(offset int64) bool {
	const superblock, group = 1024, 128 * mebibyte
	if offset -= superblock; offset > superblock {
		offset -= group - superblock
	}

	return within(offset, [2]int64{0x30, 4}, [2]int64{0x40, 4}, [2]int64{0xec, 16}, [2]int64{0x108, 4}, [2]int64{0x178, 8}, [2]int64{0x3fc, 4})
}

// xfsOwn reports whether an offset is that of the checksum or the quota inodes in a superblock,
// where xfs_admin also writes that there are none, or in the log, which xfs_admin formats with a
// higher cycle, except for the UUID there.
func xfsOwn(offset int64) bool {
	const (
		group      = imageSize / 4
		log        = 2*group + 9*block
		logLength  = 64 * mebibyte
		recordUUID = 304
	)

	return within(offset%group, [2]int64{160, 16}, [2]int64{224, 4}, [2]int64{232, 8}) ||
		within(offset-log, [2]int64{0, recordUUID}, [2]int64{recordUUID + 16, logLength - recordUUID - 16})
}

// btrfsOwn reports false for the fields about the identity: btrfstune writes all of the others with
// a new generation.
func btrfsOwn(offset int64) bool {
	const superblock = 64 << 10

	return !within(offset-superblock, [2]int64{0x20, 16}, [2]int64{0xbc, 8}, [2]int64{0x10b, 16}, [2]int64{0x23b, 16})
}

func run(t *testing.T, tool string, args ...string) {
	t.Helper()

	output, err := child.Command(t, tool, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", tool, output)
}

// TestUnsupportedOptionsUseNoTemplate: more of such a filesystem depends on the UUID than the
// templates cover.
func TestUnsupportedOptionsUseNoTemplate(t *testing.T) {
	t.Parallel()

	for fs, options := range map[string]string{
		filesystem.Ext4: "-O ^metadata_csum,uninit_bg", filesystem.XFS: "-m crc=0,finobt=0,reflink=0,bigtime=0,inobtcount=0",
		filesystem.Btrfs: "--csum sha256",
	} {
		m, o := newMaker(t, fs), filesystem.MakeOptions{Options: strings.Fields(options)}
		first, second := m.new(t, imageSize, o), m.new(t, imageSize, o)
		m.requireRuns(t, 2)
		require.NotEqual(t, uuidOf(t, first), uuidOf(t, second), "want: each filesystem has a UUID of its own")
	}
}

// TestTemplatesAreOfOneSizeAndOptions, and of one kind of provisioning.
func TestTemplatesAreOfOneSizeAndOptions(t *testing.T) {
	t.Parallel()

	m := newMaker(t, filesystem.Ext4)

	for i, o := range []filesystem.MakeOptions{
		{}, {NoLazyInit: true}, {Options: []string{"-m", "1"}}, {Options: []string{"-m", "2"}}, {BlockSize: 512},
	} {
		m.new(t, 16*mebibyte, o)
		m.requireRuns(t, i+1)
	}

	m.new(t, 17*mebibyte, filesystem.MakeOptions{})
	m.requireRuns(t, 6)
	m.new(t, 16*mebibyte, filesystem.MakeOptions{BlockSize: 4096})
	m.requireRuns(t, 6)
}

// TestTemplatesAreBounded in their number and size.
func TestTemplatesAreBounded(t *testing.T) {
	t.Parallel()

	const most = 16

	m := newMaker(t, filesystem.Ext4)
	size := func(i int) int64 { return int64(8+i) * mebibyte }

	for i := range most {
		m.new(t, size(i), filesystem.MakeOptions{})
	}

	m.new(t, size(0), filesystem.MakeOptions{})
	m.requireRuns(t, most)

	// It replaces that of size 1, the least recently used one.
	m.new(t, size(most), filesystem.MakeOptions{})
	m.new(t, size(0), filesystem.MakeOptions{})
	m.requireRuns(t, most+1)
	m.new(t, size(1), filesystem.MakeOptions{})
	m.requireRuns(t, most+2)

	for range 2 {
		m.new(t, 2<<40, filesystem.MakeOptions{})
	}

	m.requireRuns(t, most+4)
}

// TestTemplatesFollowTheTool has another mkfs in front of the real one.
func TestTemplatesFollowTheTool(t *testing.T) {
	dir := t.TempDir()
	program, err := filesystem.Tools(filesystem.Ext4)[0].Find()
	require.NoError(t, err)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	m := newMaker(t, filesystem.Ext4)
	install := func(option string) {
		script := fmt.Sprintf("#!/bin/sh\nexec %s %s \"$@\"\n", program, option)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "mkfs.ext4.new"), []byte(script), 0o700))
		require.NoError(t, os.Rename(filepath.Join(dir, "mkfs.ext4.new"), filepath.Join(dir, "mkfs.ext4")))
	}

	for i, label := range []string{"one", "two"} {
		install("-L " + label)

		for range 2 {
			image := m.new(t, 16*mebibyte, filesystem.MakeOptions{})
			m.requireRuns(t, i+1)
			require.Contains(t, string(content(t, image).at(0)), label)
		}
	}

	require.NoError(t, os.Remove(filepath.Join(dir, "mkfs.ext4")))
	m.new(t, 16*mebibyte, filesystem.MakeOptions{})
	m.requireRuns(t, 3)
}

// TestConcurrentTemplates are made by many first callers.
func TestConcurrentTemplates(t *testing.T) {
	t.Parallel()

	m := newMaker(t, filesystem.Ext4)
	images := make([]*os.File, 32)

	var group errgroup.Group

	for i := range images {
		images[i] = newImage(t, 64*mebibyte)
		group.Go(func() error { return m.templates.Make(t.Context(), m, images[i].Name(), filesystem.MakeOptions{}) })
	}

	require.NoError(t, group.Wait())

	seen := map[string]bool{}

	for _, image := range images {
		require.False(t, seen[uuidOf(t, image)], "two have one UUID")
		seen[uuidOf(t, image)] = true
		requireCheck(t, m, image.Name())
	}
}

func TestTemplatesReportErrors(t *testing.T) {
	t.Parallel()

	m := newMaker(t, filesystem.Ext4)
	m.new(t, 16*mebibyte, filesystem.MakeOptions{})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	image := newImage(t, 16*mebibyte)
	require.ErrorIs(t, m.templates.Make(ctx, m, image.Name(), filesystem.MakeOptions{}), context.Canceled)

	gone := filepath.Join(t.TempDir(), "gone")
	require.ErrorIs(t, m.templates.Make(t.Context(), m, gone, filesystem.MakeOptions{}), os.ErrNotExist)
	require.ErrorIs(t, m.templates.Make(t.Context(), m, image.Name(), filesystem.MakeOptions{Options: []string{"-d", "/etc"}}),
		filesystem.ErrOption)
}
