package changedblocks

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// TestDifferencesAreWholeBlocks but the first, where what is compared begins within a block.
func TestDifferencesAreWholeBlocks(t *testing.T) {
	t.Parallel()

	const within = 1000

	for name, test := range map[string]struct {
		offset int64
		differ int
		want   []extent.Range
	}{
		"the first of a block":      {0, 0, []extent.Range{{Offset: 0, Length: BlockBytes}}},
		"the last of a block":       {BlockBytes, BlockBytes - 1, []extent.Range{{Offset: BlockBytes, Length: BlockBytes}}},
		"the part of a block":       {within, BlockBytes - within - 1, []extent.Range{{Offset: within, Length: BlockBytes - within}}},
		"the block after a part":    {within, BlockBytes - within, []extent.Range{{Offset: BlockBytes, Length: BlockBytes}}},
		"the part of a later block": {within, 2 * BlockBytes, []extent.Range{{Offset: 2 * BlockBytes, Length: BlockBytes}}},
		"nothing":                   {within, -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []extent.Range

			joined := &rangeJoiner{from: test.offset, size: 8 * BlockBytes, visit: func(each extent.Range) error {
				got = append(got, each)

				return nil
			}}
			base := make([]byte, 2*BlockBytes+1)
			target := bytes.Clone(base)

			if test.differ >= 0 {
				target[test.differ] = 'b'
			}

			require.NoError(t, (&comparison{joined: joined}).addDiffering(t.Context(), base, target, test.offset))
			require.NoError(t, joined.flush())
			require.Equal(t, test.want, got, "want: the blocks that differ")
		})
	}
}
