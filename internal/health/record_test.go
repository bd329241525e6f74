package health_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// TestMergeHasEachReasonOnce of the conditions of a volume in two views.
func TestMergeHasEachReasonOnce(t *testing.T) {
	t.Parallel()

	missing := health.NewEntry(health.BackingFileMissing, "of one")
	alsoMissing := health.NewEntry(health.BackingFileMissing, "of the other")
	full := health.NewEntry(health.OutOfCapacity, "full")
	unmounted := health.NewEntry(health.VolumeUnmounted, "not wanted")

	record := func(entries ...health.Entry) *health.Record { return &health.Record{ID: "a", Entries: entries} }
	isWanted := func(entry health.Entry) bool { return entry.Reason != health.VolumeUnmounted }

	for name, test := range map[string]struct {
		one, other *health.Record
		want       []health.Entry
	}{
		"neither":                     {},
		"both healthy":                {one: record(), other: record()},
		"one":                         {one: record(missing), want: []health.Entry{missing}},
		"the other":                   {other: record(full), want: []health.Entry{full}},
		"a healthy one and the other": {one: record(), other: record(full), want: []health.Entry{full}},
		"both, the worst first":       {one: record(full), other: record(missing), want: []health.Entry{missing, full}},
		"the same reason":             {one: record(missing), other: record(alsoMissing, full), want: []health.Entry{missing, full}},
		"what is not wanted":          {one: record(full), other: record(unmounted), want: []health.Entry{full}},
		"only what is not wanted":     {other: record(unmounted)},
		"what is not wanted, of one":  {one: record(unmounted), want: []health.Entry{unmounted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			merged := health.Merge(test.one, test.other, isWanted)
			if test.want == nil {
				require.Nil(t, merged, "want: the merge of nothing is nil")

				return
			}

			require.Equal(t, "a", merged.ID)
			require.Equal(t, test.want, merged.Entries)
		})
	}
}
