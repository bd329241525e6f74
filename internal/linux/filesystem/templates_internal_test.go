package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestPersonalParts compares all that a template changes of a filesystem, but the times and the seed
// of an ext4.
func TestPersonalParts(t *testing.T) {
	t.Parallel()

	signedXFS := edited(handXFS(idB), func(super []byte) {
		copy(super[248:], idA[:])
		binary.BigEndian.PutUint32(super[216:], 1<<2)
	}, sumXFS)
	parts, err := personalizeXFS(bytes.NewReader(handXFSImage(idA)), idB)
	require.NoError(t, err)
	require.Equal(t, []fragment{
		{offset: handLog, data: handRecord(idB, 1), reserved: handLogBytes},
		{offset: 0, data: signedXFS},
		{offset: handGroupBlocks * handBlock, data: signedXFS},
		{offset: 2 * handGroupBlocks * handBlock, data: signedXFS},
	}, parts, "want: the log and all superblocks of an XFS")

	for name, test := range map[string]struct {
		change func(image []byte)
		want   error
	}{
		"no record in the log":     {func(image []byte) { image[handLog] = 0 }, errors.ErrUnsupported},
		"a record with a checksum": {func(image []byte) { image[handLog+32] = 1 }, errors.ErrUnsupported},
		"a record of another one":  {func(image []byte) { image[handLog+304]++ }, errors.ErrUnsupported},
		"a damaged superblock":     {func(image []byte) { image[2*handGroupBlocks*handBlock+500]++ }, ErrNotClean},
		"a log on another device":  {func(image []byte) { clear(image[48:56]) }, ErrNoSuperblock},
		"a log beyond the device":  {func(image []byte) { image[54] = 1 }, ErrNoSuperblock},
	} {
		image := handXFSImage(idA)
		test.change(image)

		parts, err = personalizeXFS(bytes.NewReader(image), idB)
		require.ErrorIs(t, err, test.want, name)
		require.Empty(t, parts, "the parts of an XFS with %s", name)
	}

	_, err = personalizeXFS(bytes.NewReader(handXFSImage(idA)[:2*handGroupBlocks*handBlock]), idB)
	require.ErrorIs(t, err, ErrNoSuperblock, "want: an XFS that ends before its last group has an error")

	sum := func(super []byte) { binary.LittleEndian.PutUint32(super, castagnoli(super[0x20:])) }
	signedBtrfs := edited(handBtrfs(idB), func(super []byte) {
		copy(super[0x23b:], idA[:])
		binary.LittleEndian.PutUint64(super[0xbc:], 0x361|1<<10)
	}, sum)

	for size, want := range map[int64][]fragment{
		64<<20 + 4096: {{offset: 64 << 10, data: signedBtrfs}, {offset: 64 << 20, data: signedBtrfs}},
		64<<20 + 4095: {{offset: 64 << 10, data: signedBtrfs}},
	} {
		image, err := os.Open(handFile(t, size, map[int64][]byte{64 << 10: handBtrfs(idA)}))
		require.NoError(t, err)

		if len(want) > 1 {
			require.NoError(t, image.Close())
			image, err = os.Open(handFile(t, size, map[int64][]byte{64 << 10: handBtrfs(idA), 64 << 20: handBtrfs(idA)}))
			require.NoError(t, err)
		}

		parts, err := personalizeBtrfs(image, idB)
		require.NoError(t, err)
		require.Equal(t, want, parts, "want: the superblocks of a btrfs of %d bytes", size)
		require.NoError(t, image.Close())
	}

	damaged := bytes.NewReader(append(make([]byte, 64<<10), edited(handBtrfs(idA), func(super []byte) { super[4000]++ }, nil)...))
	parts, err = personalizeBtrfs(damaged, idB)
	require.ErrorIs(t, err, ErrNotClean)
	require.Empty(t, parts, "the parts of a damaged btrfs")

	for name, made := range map[string]personalizer{"ext4": personalizeExt4, "xfs": personalizeXFS, "btrfs": personalizeBtrfs} {
		_, err = made(unreadable{}, idB)
		require.ErrorIs(t, err, errHand, "want: an %s that cannot be read has an error", name)
	}
}

type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errHand }

// TestPersonalPartsOfAnExt4: the superblock, and those of its copies that are of this filesystem.
func TestPersonalPartsOfAnExt4(t *testing.T) {
	t.Parallel()

	const group = 1024 * 4096 // of 1024 blocks

	super := func(id uuid.UUID, number byte) []byte {
		return edited(handExt4(id), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x04:], 5*1024)
			binary.LittleEndian.PutUint32(super[0x20:], 1024)
			super[0x5a] = number
		}, sumExt4)
	}
	other := edited(super(idA, 3), func(super []byte) { super[0x38] = 0 }, sumExt4)

	image, err := os.Open(handFile(t, 6*group, map[int64][]byte{
		1024: super(idA, 0), group: super(idA, 1), 2 * group: super(idA, 1), 3 * group: other, 4 * group: super(idB, 4), 5 * group: super(idA, 5),
	}))
	require.NoError(t, err)

	defer image.Close()

	began := time.Now().Unix()
	parts, err := personalizeExt4(image, idC)
	require.NoError(t, err)
	require.Len(t, parts, 2, "want: the superblock and the copy in the second group")

	for i, offset := range []int64{1024, group} {
		require.Equal(t, offset, parts[i].offset, "where a superblock is")
		require.Zero(t, parts[i].reserved, "the allocation of a superblock")

		made := binary.LittleEndian.Uint32(parts[i].data[0x30:])
		require.InDelta(t, began, made, 60, "the time of the last write")

		want := edited(super(idC, byte(i)), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x270:], ^castagnoli(idA[:]))
			binary.LittleEndian.PutUint32(super[0x60:], 0x2242)
			copy(super[0xec:][:16], parts[i].data[0xec:])

			for _, at := range []int{0x30, 0x40, 0x108} {
				binary.LittleEndian.PutUint32(super[at:], made)
			}
		}, sumExt4)
		require.Equal(t, want, parts[i].data, "a superblock of the new ext4")
		require.Equal(t, parts[0].data[0xec:][:16], parts[i].data[0xec:][:16], "want: all superblocks have one hash seed")
		require.NotEqual(t, make([]byte, 16), parts[i].data[0xec:][:16], "want: there is a hash seed")
	}

	// Times have 40 bits.
	later := super(idA, 0)
	require.NoError(t, personalizeExt4Super(later, idB, idC, time.Unix(0x1_2345_6789, 0)))

	for low, high := range map[int]int{0x30: 0x274, 0x40: 0x277, 0x108: 0x276} {
		require.EqualValues(t, 0x2345_6789, binary.LittleEndian.Uint32(later[low:]), "the lower bits of the time at %#x", low)
		require.EqualValues(t, 1, later[high], "the upper bits of the time at %#x", low)
	}

	require.Zero(t, later[0x275], "want: what is between the upper bits stays")

	for name, test := range map[string]struct {
		change func(super []byte)
		want   error
	}{
		"blocks of 1 KiB":    {func(super []byte) { super[0x18] = 0 }, errors.ErrUnsupported},
		"groups of no block": {func(super []byte) { clear(super[0x20:0x24]) }, errors.ErrUnsupported},
		"the older checksums": {func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x64:], 0x10)
		}, errors.ErrUnsupported},
		"blocks of 128 KiB":  {func(super []byte) { super[0x18] = 7 }, ErrNoSuperblock},
		"a damaged checksum": {func(super []byte) { super[900]++ }, ErrNotClean},
		"a short file":       {func(super []byte) { binary.LittleEndian.PutUint32(super[0x04:], 7*1024) }, ErrNoSuperblock},
	} {
		short := bytes.NewReader(append(make([]byte, 1024), edited(super(idA, 0), test.change, func(super []byte) {
			if name != "a damaged checksum" {
				sumExt4(super)
			}
		})...))
		parts, err := personalizeExt4(short, idB)
		require.ErrorIs(t, err, test.want, name)
		require.Empty(t, parts, "the parts of an ext4 with %s", name)
	}
}

// TestWrittenParts: what mkfs has written is found in chunks, of which adjacent ones are joined, up to
// a limit.
func TestWrittenParts(t *testing.T) {
	t.Parallel()

	const chunk = 16 << 10

	data := bytes.Repeat([]byte{7}, 3*chunk)
	path := handFile(t, 64*chunk, map[int64][]byte{0: data[:2*chunk], 8 * chunk: data[:1], 16 * chunk: make([]byte, chunk), 63 * chunk: data[:chunk]})
	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	written := func(reserve bool) (found []fragment) {
		all, err := readWritten(file, 64*chunk, reserve)
		require.NoError(t, err)

		return all
	}

	found := written(false)
	require.Equal(t, []int64{0, 8 * chunk, 63 * chunk}, offsets(found), "want: the chunks with data")
	require.Equal(t, [][]byte{data[:2*chunk], append([]byte{7}, make([]byte, len(found[1].data)-1)...), data[:chunk]},
		[][]byte{found[0].data, found[1].data, found[2].data}, "the data of the chunks")

	reserved := slices.DeleteFunc(written(true), func(each fragment) bool { return each.reserved == 0 })
	require.Equal(t, []int64{0, 8 * chunk, 16 * chunk, 63 * chunk}, offsets(reserved), "want: zeros that were written are reserved, too")

	for bytes, want := range map[int64]error{maxTemplateBytes: nil, maxTemplateBytes + 1: errTooLarge} {
		large, err := os.Open(handFile(t, bytes, map[int64][]byte{0: slices.Repeat([]byte{7}, int(bytes))}))
		require.NoError(t, err)

		_, err = readWritten(large, bytes, false)
		require.ErrorIs(t, err, want, "%d written bytes", bytes)
		require.NoError(t, large.Close())
	}
}

func offsets(fragments []fragment) []int64 {
	var all []int64
	for _, each := range fragments {
		all = append(all, each.offset)
	}

	return all
}

// TestKeptTemplates are those that are used most recently, up to a number and a size.
func TestKeptTemplates(t *testing.T) {
	t.Parallel()

	made := func(size int64, bytes int, change ...func(key *templateKey)) *template {
		key := templateKey{filesystem: Ext4, sizeBytes: size}
		for _, each := range change {
			each(&key)
		}

		return &template{key: key, written: []fragment{{data: make([]byte, bytes/2)}, {data: make([]byte, bytes-bytes/2)}}}
	}
	sizes := func(templates *Templates) []int64 {
		var all []int64
		for _, each := range templates.kept {
			all = append(all, each.key.sizeBytes)
		}

		return all
	}

	var templates Templates
	for size := range int64(17) {
		templates.keep(made(size, 1))
	}

	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, sizes(&templates), "want: the last 16 templates")
	require.NotNil(t, templates.find(templateKey{filesystem: Ext4, sizeBytes: 1}), "the oldest template")
	require.Nil(t, templates.find(templateKey{filesystem: Ext4, sizeBytes: 0}), "a dropped template")
	templates.keep(made(3, 1))
	require.Equal(t, []int64{2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 3}, sizes(&templates), "want: a used one and a replaced one are the last")

	templates = Templates{}
	for _, each := range []*template{made(1, 8<<20), made(2, 8<<20)} {
		templates.keep(each)
	}

	require.Equal(t, []int64{1, 2}, sizes(&templates), "want: 16 MiB are kept")
	templates.keep(made(3, 2))
	require.Equal(t, []int64{2, 3}, sizes(&templates), "want: more than 16 MiB are not kept")
	templates.keep(made(4, 16<<20+2))
	require.Empty(t, sizes(&templates), "want: what is larger than that alone is not kept")

	tool := func(key *templateKey) { key.tool.inode = 7 }
	configuration := func(key *templateKey) { key.configuration.inode = 7 }
	xfs := func(key *templateKey) { key.filesystem = XFS }

	for _, each := range []struct {
		first, second *template
		want          []int64
	}{
		{made(1, 1), made(2, 1, tool), []int64{2}},
		{made(1, 1), made(2, 1, configuration), []int64{2}},
		{made(1, 1), made(2, 1, xfs), []int64{1, 2}},
		{made(1, 1), made(2, 1, xfs, tool, configuration), []int64{1, 2}},
		{made(1, 1, tool, configuration), made(2, 1, tool, configuration), []int64{1, 2}},
		{made(1, 1), made(1, 1), []int64{1}},
	} {
		templates = Templates{}
		templates.keep(each.first)
		templates.keep(each.second)
		require.Equal(t, each.want, sizes(&templates), "kept after %+v and %+v", each.first.key, each.second.key)
	}
}

func TestTheVersionOfAToolChangesWithItsFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "mkfs")
	_, err := readVersion(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	errtext.Require(t, err, path)

	write := func(path, content string) fileVersion {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		version, err := readVersion(path)
		require.NoError(t, err)

		return version
	}
	at := func(seconds int64) { require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(seconds, 0))) }

	first := write(path, "one")
	again, err := readVersion(path)
	require.NoError(t, err)
	require.Equal(t, first, again, "the version of a file that has not changed")
	require.EqualValues(t, 3, first.size, "the size of the file")

	at(7)

	second, err := readVersion(path)
	require.NoError(t, err)
	require.EqualValues(t, 7, second.modified.Sec, "the time of the last change")
	require.NotEqual(t, first.status, second.status, "want: what cannot be set changes, too")
	require.NotEqual(t, first.inode, write(path+"2", "one").inode, "want: each file has an inode")
	require.NotZero(t, first.device, "the device of the file")
}

func TestTheKeyOfATemplateHasAllThatItDependsOn(t *testing.T) {
	// Not parallel: it sets PATH.
	bin := t.TempDir()
	t.Setenv("PATH", bin)

	for _, each := range []string{"mkfs.ext4", "mkfs.xfs"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, each), []byte("#!/bin/sh\n"), 0o700))
	}

	path := handFile(t, 12345, nil)
	version, err := readVersion(filepath.Join(bin, "mkfs.xfs"))
	require.NoError(t, err)

	key, err := newTemplateKey(XFS, path, MakeOptions{})
	require.NoError(t, err)
	require.Equal(t, templateKey{filesystem: XFS, sizeBytes: 12345, options: "4096 []", tool: version}, key, "the key of an XFS")

	key, err = newTemplateKey(XFS, path, MakeOptions{BlockSize: 512, NoLazyInit: true, Options: []string{"-L", "a b"}})
	require.NoError(t, err)
	require.Equal(t, templateKey{filesystem: XFS, sizeBytes: 12345, options: "512 " + `["-L" "a b"]`, thick: true, tool: version}, key,
		"the key of an XFS with options")

	configuration, err := readVersion("/etc/mke2fs.conf")
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}

	key, err = newTemplateKey(Ext4, path, MakeOptions{})
	require.NoError(t, err)
	require.Equal(t, configuration, key.configuration, "the version of the defaults of mkfs")

	for name, test := range map[string]struct {
		filesystem, path string
		want             error
	}{
		"an unknown filesystem": {"ext3", path, ErrUnknown},
		"a missing file":        {XFS, path + "2", os.ErrNotExist},
		"a directory":           {XFS, bin, errors.ErrUnsupported},
	} {
		_, err = newTemplateKey(test.filesystem, test.path, MakeOptions{})
		require.ErrorIs(t, err, test.want, name)
	}
}
