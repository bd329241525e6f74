package filesystem

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompareCopy changes each byte of a copy of a superblock: those that the growth of a filesystem
// leaves make it another one's.
func TestCompareCopy(t *testing.T) {
	t.Parallel()

	const blocks = 1000

	withBlocks := func(blocks uint64) []byte {
		super := make([]byte, xfsSuperAll)
		binary.BigEndian.PutUint64(super[xfsDataBlocks:], blocks)

		return super
	}
	super := withBlocks(blocks)

	// struct xfs_dsb: sb_magicnum and sb_blocksize, sb_uuid, sb_agblocks.
	for at := range xfsSuperAll {
		copied := withBlocks(blocks - 1)
		copied[at] ^= 0x80

		fixed := at < 8 || at >= 32 && at < 48 || at >= 84 && at < 88
		larger := at >= 8 && at < 15 // sb_dblocks; its last byte makes it smaller

		ofIt, _ := compareCopy(super, copied)
		require.Equal(t, !fixed && !larger, ofIt, "the byte at %d is another one", at)
	}

	for copied, want := range map[uint64]struct{ ofIt, older bool }{
		blocks - 1: {true, true}, blocks: {true, false}, blocks + 1: {false, false},
	} {
		ofIt, older := compareCopy(super, withBlocks(copied))
		require.Equal(t, want, struct{ ofIt, older bool }{ofIt, older}, "a copy with %d blocks", copied)
	}
}
