package pool

import (
	"testing"

	"github.com/stretchr/testify/require"
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
}
