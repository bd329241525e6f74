package changedblocks

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// limited returns a number of extents and then fails, or ends if failure is nil.
type limited struct {
	left    int64
	failure error
}

func (l *limited) Next(context.Context) (extent.Extent, bool, error) {
	if l.left == 0 {
		return extent.Extent{}, false, l.failure
	}

	l.left--

	return located(10*l.left, 10*l.left+5, 0), true, nil
}

// TestReadAheadFailsWithItsReader fails the reader behind the read-ahead at the borders of its batches.
// An end without an error would be an incomplete backup.
func TestReadAheadFailsWithItsReader(t *testing.T) {
	t.Parallel()

	for _, failure := range []error{nil, errors.New("failure")} {
		for _, count := range []int64{
			0, 1, batchExtents - 1, batchExtents, batchExtents + 1, 2 * batchExtents, (maxBatches + 1) * batchExtents, (maxBatches+2)*batchExtents + 1,
		} {
			ahead, stop := prefetch(t.Context(), &limited{left: count, failure: failure})

			var (
				read int64
				ok   = true
				err  error
			)

			for ok {
				if _, ok, err = ahead.Next(t.Context()); ok {
					read++
				}
			}

			require.ErrorIs(t, err, failure, "behind %d extents", count)

			// A failure may come earlier: with the batch that it ends.
			if failure == nil {
				require.Equal(t, count, read, "want: all ranges are read")
			}

			_, ok, err = ahead.Next(t.Context())
			require.False(t, ok, "behind the end of %d extents", count)
			require.ErrorIs(t, err, failure, "the failure is kept")

			stop()
		}
	}
}

// TestReadAheadEndsWithItsContext cancels a read-ahead that nothing takes from.
func TestReadAheadEndsWithItsContext(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	ahead, stop := prefetch(ctx, &limited{left: 100 * batchExtents})

	cancel()
	stop()

	for {
		_, ok, err := ahead.Next(t.Context())
		if err == nil && ok {
			continue
		}

		require.ErrorIs(t, err, context.Canceled, "a read-ahead that was cancelled ends as if the file did")

		return
	}
}
