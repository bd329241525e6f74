package changedblocks

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// counted returns a number of extents that were made up.
func counted(count int) []extent.Extent {
	made := make([]extent.Extent, count)
	for i := range made {
		made[i] = located(int64(10*i), int64(10*i+5), 0)
	}

	return made
}

// TestReadAheadFailsWithItsReader fails the reader behind the read-ahead at the borders of its batches.
// An end without an error would be an incomplete backup.
func TestReadAheadFailsWithItsReader(t *testing.T) {
	t.Parallel()

	for _, failure := range []error{nil, errors.New("failure")} {
		for _, count := range []int{
			0, 1, batchExtents - 1, batchExtents, batchExtents + 1, 2 * batchExtents, (maxBatches + 1) * batchExtents, (maxBatches+2)*batchExtents + 1,
		} {
			ahead, stop := readAhead(t.Context(), func(context.Context) iter.Seq2[extent.Extent, error] {
				if failure == nil {
					return listed(counted(count)...)
				}

				return broken(failure, counted(count)...)
			})

			var (
				read []extent.Extent
				last error
			)

			for each, err := range ahead {
				require.NoError(t, last, "want: nothing is read behind a failure")

				if last = err; err == nil {
					read = append(read, each)
				}
			}

			stop()
			require.ErrorIs(t, last, failure, "behind %d extents", count)

			// A failure may come earlier: with the batch that it ends.
			if failure == nil {
				require.Len(t, read, count, "want: all extents are read")
			}

			require.Equal(t, counted(count)[:len(read)], append([]extent.Extent{}, read...), "want: they are read in order")
		}
	}
}

// TestReadAheadEndsWithItsContext cancels a read-ahead that nothing takes from.
func TestReadAheadEndsWithItsContext(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	ahead, stop := readAhead(ctx, func(context.Context) iter.Seq2[extent.Extent, error] { return listed(counted(100 * batchExtents)...) })

	cancel()
	stop()

	var last error
	for _, err := range ahead {
		last = err
	}

	require.ErrorIs(t, last, context.Canceled, "want: a read-ahead that was cancelled does not end as the file would")
}
