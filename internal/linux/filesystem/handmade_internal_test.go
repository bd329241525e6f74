package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// What a superblock written by hand has.
const (
	handGroups, handGroupBlocks, handBlock = 3, 64, 4096
	// The log has two blocks, from the fifth one of the second group on.
	handLog, handLogBytes = (handGroupBlocks + 4) * handBlock, 2 * handBlock
)

var (
	idA = uuid.MustParse("aaaaaaaa-0000-4000-8000-00000000000a")
	idB = uuid.MustParse("bbbbbbbb-0000-4000-8000-00000000000b")
	idC = uuid.MustParse("cccccccc-0000-4000-8000-00000000000c")
)

func castagnoli(parts ...[]byte) uint32 {
	return crc32.Checksum(bytes.Join(parts, nil), crc32.MakeTable(crc32.Castagnoli))
}

// sumXFS puts the checksum into a superblock of XFS, after struct xfs_dsb.
func sumXFS(super []byte) {
	binary.LittleEndian.PutUint32(super[224:], castagnoli(super[:224], make([]byte, 4), super[228:]))
}

// handXFS returns a superblock of XFS.
func handXFS(id uuid.UUID) []byte {
	super := make([]byte, 512)
	copy(super, "XFSB")
	binary.BigEndian.PutUint32(super[4:], handBlock)
	binary.BigEndian.PutUint64(super[8:], handGroups*handGroupBlocks)
	copy(super[32:], id[:])
	binary.BigEndian.PutUint64(super[48:], 1<<6|4)
	binary.BigEndian.PutUint32(super[84:], handGroupBlocks)
	binary.BigEndian.PutUint32(super[88:], handGroups)
	binary.BigEndian.PutUint32(super[96:], 2)
	binary.BigEndian.PutUint16(super[100:], 0xb4a5)
	binary.BigEndian.PutUint16(super[102:], 512)
	super[124] = 6
	binary.BigEndian.PutUint32(super[240:], 7)
	sumXFS(super)

	return super
}

// handXFSImage returns an XFS whose superblocks have that UUID, and a log as mkfs makes it.
func handXFSImage(id uuid.UUID) []byte {
	image := make([]byte, handGroups*handGroupBlocks*handBlock)
	for group := range handGroups {
		copy(image[group*handGroupBlocks*handBlock:], handXFS(id))
	}

	copy(image[handLog:], handRecord(id, 1))

	return image
}

// handRecord returns the header of a record in the log of an XFS.
func handRecord(id uuid.UUID, cycle uint32) []byte {
	record := make([]byte, 512)
	binary.BigEndian.PutUint32(record, 0xfeedbabe)
	binary.BigEndian.PutUint32(record[4:], cycle)
	copy(record[304:], id[:])

	return record
}

// handBtrfs returns the superblock of a btrfs of that UUID.
func handBtrfs(id uuid.UUID) []byte {
	super := make([]byte, 4096)
	copy(super[0x20:], id[:])
	binary.LittleEndian.PutUint64(super[0x30:], 64<<10)
	copy(super[0x40:], "_BHRfS_M")
	binary.LittleEndian.PutUint64(super[0x88:], 1)
	binary.LittleEndian.PutUint64(super[0xbc:], 0x361)
	binary.LittleEndian.PutUint32(super, castagnoli(super[0x20:]))

	return super
}

// handExt4 returns the superblock of an ext4 of that UUID, with checksums.
func handExt4(id uuid.UUID) []byte {
	super := make([]byte, 1024)
	binary.LittleEndian.PutUint32(super[0x04:], 16384)
	binary.LittleEndian.PutUint32(super[0x18:], 2)
	binary.LittleEndian.PutUint32(super[0x20:], 32768)
	copy(super[0x38:], "\x53\xef")
	binary.LittleEndian.PutUint32(super[0x60:], 0x242)
	binary.LittleEndian.PutUint32(super[0x64:], 0x400)
	copy(super[0x68:], id[:])
	sumExt4(super)

	return super
}

func sumExt4(super []byte) { binary.LittleEndian.PutUint32(super[0x3fc:], ^castagnoli(super[:0x3fc])) }

// edited returns a copy of a superblock with a change, and the checksum that it then has.
func edited(super []byte, change, sum func(super []byte)) []byte {
	made := bytes.Clone(super)
	change(made)

	if sum != nil {
		sum(made)
	}

	return made
}

// handFile returns the path of an image that has parts at their offsets.
func handFile(t *testing.T, bytes int64, parts map[int64][]byte) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "image")
	file, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(bytes))

	for offset, part := range parts {
		_, err := file.WriteAt(part, offset)
		require.NoError(t, err)
	}

	require.NoError(t, file.Close())

	return path
}

// scripted is a Runner that records the commands, and does work in place of each.
type scripted struct {
	commands []Command
	work     func(command Command) (Result, error)
}

func (s *scripted) Run(_ context.Context, command Command) (Result, error) {
	s.commands = append(s.commands, command)

	if s.work == nil {
		return Result{}, nil
	}

	return s.work(command)
}

// did returns the tools with their arguments.
func (s *scripted) did() [][]string {
	var all [][]string
	for _, each := range s.commands {
		all = append(all, append([]string{each.Tool}, each.Args...))
	}

	return all
}

func TestAnImpossibleLayoutOfAnXFSIsNotUsed(t *testing.T) {
	t.Parallel()

	put16 := func(at int, value uint16) func([]byte) {
		return func(super []byte) { binary.BigEndian.PutUint16(super[at:], value) }
	}
	put32 := func(at int, value uint32) func([]byte) {
		return func(super []byte) { binary.BigEndian.PutUint32(super[at:], value) }
	}

	for name, test := range map[string]struct {
		change func(super []byte)
		err    error
	}{
		"as made":                    {change: func([]byte) {}},
		"version 4":                  {put16(100, 0xb4a4), errors.ErrUnsupported},
		"sectors of 0 bytes":         {put16(102, 0), ErrNoSuperblock},
		"sectors of 256 bytes":       {put16(102, 256), ErrNoSuperblock},
		"sectors of 768 bytes":       {put16(102, 768), ErrNoSuperblock},
		"sectors of 32 KiB":          {change: put16(102, 32<<10)},
		"blocks of 256 bytes":        {put32(4, 256), ErrNoSuperblock},
		"blocks of 512 bytes":        {change: put32(4, 512)},
		"blocks of 64 KiB":           {change: put32(4, 64<<10)},
		"blocks of 128 KiB":          {put32(4, 128<<10), ErrNoSuperblock},
		"one group":                  {put32(88, 1), ErrNoSuperblock},
		"two groups":                 {change: put32(88, 2)},
		"groups of no block":         {put32(84, 0), ErrNoSuperblock},
		"groups of one block":        {change: put32(84, 1)},
		"a group number of 31 bits":  {change: func(super []byte) { super[124] = 31 }},
		"a group number of 32 bits":  {func(super []byte) { super[124] = 32 }, ErrNoSuperblock},
		"a log on another device":    {func(super []byte) { clear(super[48:56]) }, ErrNoSuperblock},
		"a log in the first block":   {change: func(super []byte) { super[55] = 1; super[54] = 0 }},
		"a version beyond its flags": {put16(100, 0xb4a6), errors.ErrUnsupported},
	} {
		image := handXFSImage(idA)
		test.change(image)

		layout, err := readXFSLayout(bytes.NewReader(image))
		if test.err != nil {
			require.ErrorIs(t, err, test.err, name)
			require.Nil(t, layout, "the layout of an XFS with %s", name)

			continue
		}

		require.NoError(t, err, name)
		require.Equal(t, &xfsLayout{
			super: image[:binary.BigEndian.Uint16(image[102:])], sector: int(binary.BigEndian.Uint16(image[102:])),
			blockSize: int64(binary.BigEndian.Uint32(image[4:])),
			groups:    binary.BigEndian.Uint32(image[88:]), groupBlocks: binary.BigEndian.Uint32(image[84:]),
		}, layout, "the layout of an XFS with %s", name)
	}

	layout, err := readXFSLayout(bytes.NewReader(handXFS(idA)))
	require.NoError(t, err, "want: the first sector suffices")

	offset, length := layout.log()
	require.Equal(t, []int64{handLog, handLogBytes}, []int64{offset, length}, "where the log is")
	require.EqualValues(t, 2*handGroupBlocks*handBlock, layout.superOffset(2), "where the third superblock is")
	require.EqualValues(t, 7, layout.cycle(), "the cycle of the log")

	for _, length := range []int{0, 263} {
		_, err = readXFSLayout(bytes.NewReader(handXFS(idA)[:length]))
		require.ErrorIs(t, err, ErrNoSuperblock, "a superblock of %d bytes", length)
	}
}

// TestAnXFSHasTheUUIDOfItsLastSuperblock, which SetUUID writes after all others.
func TestAnXFSHasTheUUIDOfItsLastSuperblock(t *testing.T) {
	t.Parallel()

	last := (handGroups - 1) * handGroupBlocks * handBlock

	for name, test := range map[string]struct {
		first, middle, last uuid.UUID
		want                bool
	}{
		"all":               {idA, idA, idA, true},
		"but a middle one":  {idA, idB, idA, true},
		"the first only":    {idA, idA, idB, false},
		"the last only":     {idB, idB, idA, false},
		"none":              {idB, idB, idB, false},
		"neither of others": {idB, idC, idC, false},
	} {
		image := handXFSImage(test.first)
		copy(image[handGroupBlocks*handBlock:], handXFS(test.middle))
		copy(image[last:], handXFS(test.last))

		has, err := (&xfs{}).HasUUID(bytes.NewReader(image), idA.String())
		require.NoError(t, err, name)
		require.Equal(t, test.want, has, "HasUUID where %s has it", name)
	}

	has, err := (&xfs{}).HasUUID(bytes.NewReader(handXFSImage(idA)[:last+511]), idA.String())
	require.ErrorIs(t, err, ErrNoSuperblock, "want: an image that ends within its last superblock has an error")
	require.False(t, has, "HasUUID beside an error")
}

// TestANewUUIDKeepsThatOfTheMetadata: all of a superblock is compared after it was changed, twice.
func TestANewUUIDKeepsThatOfTheMetadata(t *testing.T) {
	t.Parallel()

	sumBtrfs := func(super []byte) { binary.LittleEndian.PutUint32(super, castagnoli(super[0x20:])) }
	signXFS := func(super []byte, id uuid.UUID) error {
		layout := &xfsLayout{super: super, sector: len(super)}

		return layout.sign(super, id, layout.metadataUUID())
	}

	for name, test := range map[string]struct {
		made []byte
		sign func(super []byte, id uuid.UUID) error
		// signed is what it has after the change from idA to the id.
		signed func(super []byte, id uuid.UUID)
		sum    func(super []byte)
		// unused has no meaning but its checksum.
		unused int
	}{
		"xfs": {handXFS(idA), signXFS, func(super []byte, id uuid.UUID) {
			copy(super[32:], id[:])
			copy(super[248:], idA[:])
			binary.BigEndian.PutUint32(super[216:], 1<<2)
		}, sumXFS, 500},
		"btrfs": {handBtrfs(idA), btrfsSign, func(super []byte, id uuid.UUID) {
			copy(super[0x20:], id[:])
			copy(super[0x23b:], idA[:])
			binary.LittleEndian.PutUint64(super[0xbc:], 0x361|1<<10)
		}, sumBtrfs, 4000},
		"ext4": {handExt4(idA), ext4Sign, func(super []byte, id uuid.UUID) {
			copy(super[0x68:], id[:])
			binary.LittleEndian.PutUint32(super[0x270:], ^castagnoli(idA[:]))
			binary.LittleEndian.PutUint32(super[0x60:], 0x2242)
		}, sumExt4, 900},
	} {
		super := bytes.Clone(test.made)

		for _, id := range []uuid.UUID{idB, idC} {
			require.NoError(t, test.sign(super, id), "sign %s", name)
			require.Equal(t, edited(test.made, func(super []byte) { test.signed(super, id) }, test.sum), super, "%s with another UUID", name)
		}

		damaged := edited(test.made, func(super []byte) { super[test.unused]++ }, nil)
		before := bytes.Clone(damaged)
		require.ErrorIs(t, test.sign(damaged, idB), ErrNotClean, "sign %s with a wrong checksum", name)
		require.Equal(t, before, damaged, "want: %s with a wrong checksum is not changed", name)
	}

	other := edited(handXFS(idA), func(super []byte) { super[0]++ }, sumXFS)
	require.ErrorIs(t, signXFS(other, idB), ErrNotClean, "want: what has no magic number is not signed")

	other = edited(handBtrfs(idA), func(super []byte) { super[0xc4] = 1 }, sumBtrfs)
	require.ErrorIs(t, btrfsSign(other, idB), errors.ErrUnsupported, "want: a btrfs with other checksums is not signed")
}
