package pool

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

func TestMergeSpans(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ shared, merged []span }{
		"none":               {},
		"one":                {[]span{{1, 2}}, []span{{1, 2}}},
		"apart, in no order": {[]span{{5, 6}, {1, 2}}, []span{{1, 2}, {5, 6}}},
		"twice":              {[]span{{1, 4}, {1, 4}}, []span{{1, 4}}},
		"one in another":     {[]span{{1, 9}, {3, 4}, {8, 9}}, []span{{1, 9}}},
		"overlapping":        {[]span{{3, 6}, {1, 4}, {5, 9}}, []span{{1, 9}}},
		"side by side":       {[]span{{4, 6}, {1, 4}}, []span{{1, 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			sum := Allocation{shared: test.shared}
			sum.merge()
			require.Equal(t, test.merged, sum.shared)
		})
	}
}

// TestAllocationHasALimit: a tenant makes as many extents as the filesystem can have.
func TestAllocationHasALimit(t *testing.T) {
	t.Parallel()

	var sum Allocation
	for i := range uint64(2 * maxShared) {
		sum.addShared(span{2 * i, 2*i + 1})
	}

	require.Len(t, sum.shared, maxShared, "want: the shared extents are limited")
	require.EqualValues(t, maxShared, sum.Bytes(), "too little, never too much")

	// Every second one touches the one before it.
	sum = Allocation{}
	for i := range uint64(maxShared + 2) {
		sum.addShared(span{i + i/2, i + i/2 + 1})
	}

	require.EqualValues(t, maxShared+2, sum.Bytes(), "want: extents that touch each other are kept as one")
}

// TestExtentsOfAnAllocation: shared blocks count once, and those of a file with several links in part for each.
func TestExtentsOfAnAllocation(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		extents []extent.Extent
		links   uint32
		want    int64
	}{
		"one":                         {[]extent.Extent{{Start: 4, End: 10}}, 1, 6},
		"of three links":              {[]extent.Extent{{Start: 4, End: 10}}, 3, 2},
		"compressed":                  {[]extent.Extent{{Start: 4, End: 10, Encoded: true}}, 1, 0},
		"compressed and shared":       {[]extent.Extent{{Start: 4, End: 10, Encoded: true, Shared: true, Located: true}}, 1, 0},
		"shared, at an unknown place": {[]extent.Extent{{Start: 4, End: 10, Shared: true}}, 1, 0},
		"shared": {[]extent.Extent{
			{Start: 4, End: 10, Shared: true, Located: true, Physical: 100}, {Start: 0, End: 6, Shared: true, Located: true, Physical: 100},
		}, 3, 6},
		"shared in part": {[]extent.Extent{
			{Start: 4, End: 10, Shared: true, Located: true, Physical: 100}, {Start: 0, End: 6, Shared: true, Located: true, Physical: 104},
		}, 1, 10},
	} {
		var sum Allocation

		for _, each := range test.extents {
			sum.addExtent(each, test.links)
		}

		require.Equal(t, test.want, sum.Bytes(), "want: the space of the extents: %s", name)
	}
}
