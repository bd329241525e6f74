package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedianIsInTheMiddle(t *testing.T) {
	t.Parallel()

	for want, values := range map[float64][]float64{1: {1}, 2: {3, 1, 2}, 2.5: {4, 1, 3, 2}, 1.5: {2, 1}} {
		require.InDelta(t, want, median(values), 0, "want: the median of %v", values)
	}
}
