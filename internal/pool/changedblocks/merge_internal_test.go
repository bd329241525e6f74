package changedblocks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// listed yields extents that were made up.
func listed(extents ...extent.Extent) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		for _, each := range extents {
			if !yield(each, nil) {
				return
			}
		}
	}
}

// located is data of which the filesystem says where it is.
func located(start, end, physical int64) extent.Extent {
	return extent.Extent{Start: start, End: end, Located: true, Physical: physical}
}

// unlocated is data of which it can't say that.
func unlocated(start, end int64) extent.Extent { return extent.Extent{Start: start, End: end} }

func TestExtentsOfBothAreCutAtEachEnd(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		base, target []extent.Extent
		// want are the segments, and what is known of each.
		want []string
	}{
		"nothing": {},
		"only base": {
			base: []extent.Extent{located(10, 20, 110)},
			want: []string{"10-20 differs"},
		},
		"only target": {
			target: []extent.Extent{located(0, 20, 110), located(20, 30, 500)},
			want:   []string{"0-20 differs", "20-30 differs"},
		},
		"the same extent": {
			base: []extent.Extent{located(10, 20, 110)}, target: []extent.Extent{located(10, 20, 110)},
			want: []string{"10-20 shared"},
		},
		"the same offset of the file, elsewhere on the disk": {
			base: []extent.Extent{located(10, 20, 110)}, target: []extent.Extent{located(10, 20, 111)},
			want: []string{"10-20 differs"},
		},
		"the same blocks of the disk, for other bytes of the file": {
			base: []extent.Extent{located(10, 20, 110)}, target: []extent.Extent{located(15, 25, 110)},
			want: []string{"10-15 differs", "15-20 differs", "20-25 differs"},
		},
		"split at different offsets": {
			base:   []extent.Extent{located(0, 100, 1000)},
			target: []extent.Extent{located(0, 40, 1000), located(40, 50, 7000), located(60, 100, 1060)},
			want:   []string{"0-40 shared", "40-50 differs", "50-60 differs", "60-100 shared"},
		},
		"cut the other way round": {
			base:   []extent.Extent{located(0, 40, 1000), located(40, 50, 7000), located(60, 100, 1060)},
			target: []extent.Extent{located(0, 100, 1000)},
			want:   []string{"0-40 shared", "40-50 differs", "50-60 differs", "60-100 shared"},
		},
		"what can't be located": {
			base:   []extent.Extent{located(0, 10, 1000), unlocated(10, 30)},
			target: []extent.Extent{unlocated(5, 15), located(20, 25, 0), unlocated(40, 50)},
			want: []string{
				"0-5 differs", "5-10 unknown", "10-15 unknown", "15-20 unknown", "20-25 unknown", "25-30 unknown", "40-50 unknown",
			},
		},
		"both unlocated, with the physical offset 0": {
			base: []extent.Extent{unlocated(0, 10)}, target: []extent.Extent{unlocated(0, 10)},
			want: []string{"0-10 unknown"},
		},
		"far apart": {
			base: []extent.Extent{located(0, 10, 0), located(90, 100, 90)}, target: []extent.Extent{located(50, 60, 50)},
			want: []string{"0-10 differs", "50-60 differs", "90-100 differs"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []string

			require.NoError(t, merge(t.Context(), listed(c.base...), listed(c.target...), func(_ context.Context, s segment) error {
				verdict := "differs"

				switch {
				case !s.located():
					verdict = "unknown"
				case s.shared():
					verdict = "shared"
				}

				got = append(got, fmt.Sprintf("%d-%d %s", s.start, s.end, verdict))

				return nil
			}))
			require.Equal(t, c.want, got)
		})
	}
}

func TestTouchingRangesAreJoined(t *testing.T) {
	t.Parallel()

	const k = 1 << 10

	for name, c := range map[string]struct {
		from, size int64
		add        [][2]int64
		want       []extent.Range
	}{
		"nothing":              {size: 100 * k},
		"one":                  {size: 100 * k, add: [][2]int64{{8 * k, 12 * k}}, want: []extent.Range{{Offset: 8 * k, Length: 4 * k}}},
		"touching":             {size: 100 * k, add: [][2]int64{{0, 4 * k}, {4 * k, 8 * k}}, want: []extent.Range{{Offset: 0, Length: 8 * k}}},
		"apart":                {size: 100 * k, add: [][2]int64{{0, 4 * k}, {8 * k, 12 * k}}, want: []extent.Range{{Offset: 0, Length: 4 * k}, {Offset: 8 * k, Length: 4 * k}}},
		"small ones, apart":    {size: 100 * k, add: [][2]int64{{1 * k, 2 * k}, {9 * k, 10 * k}}, want: []extent.Range{{Offset: 0, Length: 4 * k}, {Offset: 8 * k, Length: 4 * k}}},
		"small ones, together": {size: 100 * k, add: [][2]int64{{1 * k, 2 * k}, {3 * k, 5 * k}}, want: []extent.Range{{Offset: 0, Length: 8 * k}}},
		"end of the file":      {size: 10*k + 5, add: [][2]int64{{9 * k, 10*k + 5}}, want: []extent.Range{{Offset: 8 * k, Length: 2*k + 5}}},
		"begin in a block":     {from: 5 * k, size: 100 * k, add: [][2]int64{{5 * k, 6 * k}}, want: []extent.Range{{Offset: 5 * k, Length: 3 * k}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []extent.Range

			joined := &rangeJoiner{from: c.from, size: c.size, visit: func(r extent.Range) error {
				got = append(got, r)

				return nil
			}}

			for _, each := range c.add {
				require.NoError(t, joined.add(t.Context(), each[0], each[1]))
			}

			require.NoError(t, joined.flush())
			require.Equal(t, c.want, got)
		})
	}
}

// TestMergeEnds is for a visitor and a file that fail.
func TestMergeEnds(t *testing.T) {
	t.Parallel()

	failure := errors.New("failure")
	visits := 0

	require.ErrorIs(t, merge(t.Context(), listed(located(0, 10, 0), located(20, 30, 0)), listed(), func(context.Context, segment) error {
		visits++

		return failure
	}), failure)
	require.Equal(t, 1, visits, "want: a failure ends the merge")

	require.ErrorIs(t, merge(t.Context(), listed(located(0, 10, 0)), broken(failure), func(context.Context, segment) error {
		visits++

		return nil
	}), failure)
	require.Equal(t, 1, visits, "want: a failure ends the merge")

	// An end without an error would be an incomplete backup.
	require.ErrorIs(t, merge(t.Context(), broken(failure, located(0, 10, 0), located(20, 30, 0)), listed(), func(context.Context, segment) error {
		visits++

		return nil
	}), failure)
	require.Equal(t, 3, visits, "want: what is read before the failure is visited")
}

// broken yields the extents, and then an error.
func broken(err error, extents ...extent.Extent) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		for each := range listed(extents...) {
			if !yield(each, nil) {
				return
			}
		}

		yield(extent.Extent{}, err)
	}
}
