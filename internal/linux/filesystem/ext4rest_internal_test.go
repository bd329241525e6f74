package filesystem

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGroupsWithASuperblock: with sparse_super the powers of 3, 5 and 7 have one.
func TestGroupsWithASuperblock(t *testing.T) {
	t.Parallel()

	sparse := edited(handExt4(idA), func(super []byte) { super[0x64] |= 1 }, nil)
	sparse2 := edited(sparse, func(super []byte) { super[0x5d] |= 2 }, nil)

	for group, want := range map[int64]bool{
		0: true, 1: true, 2: false, 3: true, 4: false, 5: true, 6: false, 7: true, 8: false, 9: true, 10: false, 15: false, 21: false, 25: true,
		26: false, 27: true, 35: false, 45: false, 49: true, 81: true, 125: true, 242: false, 243: true, 244: false, 343: true, 625: true,
	} {
		require.Equal(t, want, ext4HasSuperblock(sparse, group), "whether group %d has a superblock", group)
		require.True(t, ext4HasSuperblock(handExt4(idA), group), "want: group %d has a superblock without sparse_super", group)
		require.False(t, ext4HasSuperblock(sparse2, group), "want: group %d has no superblock with sparse_super2", group)
	}
}

// TestTheRestOfAnExt4 is unused if it is too short for another group.
func TestTheRestOfAnExt4(t *testing.T) {
	t.Parallel()

	const groupBlocks, bytes = 1024, 4096

	super := func(groups uint32, change func(super []byte)) []byte {
		return edited(handExt4(idA), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x04:], groups*groupBlocks)
			binary.LittleEndian.PutUint32(super[0x20:], groupBlocks)
			binary.LittleEndian.PutUint32(super[0x28:], 64)
			binary.LittleEndian.PutUint16(super[0x58:], 256)
			binary.LittleEndian.PutUint16(super[0xce:], 5)
			super[0x64] |= 1 // sparse_super

			if change != nil {
				change(super)
			}
		}, nil)
	}
	with64Bit := func(descriptor uint16) func(super []byte) {
		return func(super []byte) {
			super[0x60] |= 0x80
			binary.LittleEndian.PutUint16(super[0xfe:], descriptor)
		}
	}

	for name, test := range map[string]struct {
		super  []byte
		groups int64
		// least is the shortest rest for a group, in blocks.
		least int64
	}{
		"bitmaps, inodes, data":     {super(2, nil), 2, 2 + 4 + 50},
		"a part of a block":         {super(2, func(super []byte) { super[0x28]++ }), 2, 2 + 5 + 50},
		"a superblock, descriptors": {super(3, nil), 3, 2 + 4 + 50 + 1 + 1 + 5},
		"many descriptors":          {super(243, nil), 243, 2 + 4 + 50 + 1 + 2 + 5},
		"large descriptors":         {super(243, with64Bit(64)), 243, 2 + 4 + 50 + 1 + 4 + 5},
		"no size of descriptors":    {super(243, with64Bit(0)), 243, 2 + 4 + 50 + 1 + 2 + 5},
	} {
		for rest, want := range map[int64]bool{0: true, 1: true, test.least - 1: true, test.least: false, test.least + 1: false, groupBlocks - 1: false} {
			for _, more := range []int64{0, bytes - 1} {
				device := (test.groups*groupBlocks+rest)*bytes + more
				require.Equal(t, want, ext4RestIsUnused(test.super, device), "whether a rest of %d blocks is unused: %s", rest, name)
			}
		}

		require.False(t, ext4RestIsUnused(test.super, (test.groups+1)*groupBlocks*bytes), "want: a whole group is no rest: %s", name)
		require.False(t, ext4RestIsUnused(test.super, test.groups*groupBlocks*bytes-1), "want: a shorter device has no rest: %s", name)
	}

	for name, change := range map[string]func(super []byte){
		"it ends within a group": func(super []byte) { binary.LittleEndian.PutUint32(super[0x04:], 2*groupBlocks-1) },
		"no blocks in a group":   func(super []byte) { clear(super[0x20:0x24]) },
		"no size of a block":     func(super []byte) { super[0x18] = 7 },
		"no blocks":              func(super []byte) { clear(super[0x04:0x08]) },
	} {
		require.False(t, ext4RestIsUnused(super(2, change), 2*groupBlocks*bytes+bytes), name)
	}
}
