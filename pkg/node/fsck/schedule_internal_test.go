package fsck

import (
	"flag"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A property that fails prints how to reproduce it, and writes no file.
var _ = flag.Set("rapid.nofailfile", "true")

func TestTheNextCheckIsWithinThePeriod(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "id")
		// So that two of the longest periods can be added.
		since := time.Unix(0, rapid.Int64Range(0, int64(90*365*24*time.Hour)).Draw(t, "since"))
		period := time.Duration(rapid.Int64Range(1, int64(maxPeriod)).Draw(t, "period"))

		next := nextCheck(id, since, period)
		require.Positive(t, next.Sub(since), "want: the next check is later than the last one")
		require.LessOrEqual(t, next.Sub(since), period, "want: the next check is within the period")
		require.Equal(t, period, nextCheck(id, next, period).Sub(next), "the offset in each period is the same")
	})
}

func TestChecksAreSpread(t *testing.T) {
	t.Parallel()

	const volumes, parts = 1000, 10

	// A constant, because the counts depend on it.
	since, period := time.Unix(0, 0), 24*time.Hour

	var counts [parts]int

	for i := range volumes {
		counts[int(nextCheck("volume-"+strconv.Itoa(i), since, period).Sub(since)*parts/(period+1))]++
	}

	for _, count := range counts {
		require.InDelta(t, volumes/parts, count, volumes/parts/2, "%v", counts)
	}
}

func TestAResultKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()

	first, second := time.Unix(1000, 0), time.Unix(2000, 0)
	damaged := Result{At: first, Verdict: VerdictDamaged, Detail: "bad", How: HowOnline, Errors: 3, Since: first}
	clean := Result{At: first, Verdict: VerdictClean, How: HowOnline, CleanAt: first, Errors: 3, Since: first}

	for name, test := range map[string]struct {
		older *Result
		newer Result
		want  Result
	}{
		"first check": {
			nil,
			Result{At: second, Verdict: VerdictClean, How: HowStage, Since: second},
			Result{At: second, Verdict: VerdictClean, How: HowStage, CleanAt: second, Since: second},
		},
		"clean after clean": {
			&clean,
			Result{At: second, Verdict: VerdictClean, How: HowOnline, Errors: 5, Since: second},
			Result{At: second, Verdict: VerdictClean, How: HowOnline, CleanAt: second, Errors: 5, Since: second},
		},
		"staging does not postpone the next check": {
			&clean,
			Result{At: second, Verdict: VerdictRepaired, Detail: "repaired", How: HowStage, Since: second},
			Result{At: second, Verdict: VerdictRepaired, Detail: "repaired", How: HowStage, CleanAt: second, Since: first},
		},
		"offline keeps the error count": {
			&clean,
			Result{At: second, Verdict: VerdictClean, How: HowOffline, Since: second},
			Result{At: second, Verdict: VerdictClean, How: HowOffline, CleanAt: second, Errors: 3, Since: second},
		},
		"damage keeps the last clean time": {
			&clean,
			Result{At: second, Verdict: VerdictDamaged, Detail: "worse", How: HowOnline, Errors: 9, Since: second},
			Result{At: second, Verdict: VerdictDamaged, Detail: "worse", How: HowOnline, CleanAt: first, Errors: 3, Since: second},
		},
		"clean after damage": {
			&damaged,
			Result{At: second, Verdict: VerdictClean, How: HowOnline, Errors: 9, Since: second},
			Result{At: second, Verdict: VerdictClean, How: HowOnline, CleanAt: second, Errors: 9, Since: second},
		},
		"failed check": {
			&clean,
			Result{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, Since: second},
			Result{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, CleanAt: first, Errors: 3, Since: second},
		},
		"failed check keeps damage": {
			&damaged,
			Result{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, Since: second},
			Result{At: first, Verdict: VerdictDamaged, Detail: "bad", How: HowOnline, Errors: 3, Since: second},
		},
		"clean after a suspicion": {
			&Result{At: first, Verdict: VerdictClean, Suspicion: &Suspicion{At: first}},
			Result{At: second, Verdict: VerdictClean, How: HowOffline},
			Result{At: second, Verdict: VerdictClean, How: HowOffline, CleanAt: second},
		},
		"a suspicion during the check": {
			&Result{At: first, Verdict: VerdictClean, Suspicion: &Suspicion{At: second}},
			Result{At: second, Verdict: VerdictClean, How: HowOffline},
			Result{At: second, Verdict: VerdictClean, How: HowOffline, CleanAt: second, Suspicion: &Suspicion{At: second}},
		},
		"a suspicion in the future": {
			&Result{At: first, Verdict: VerdictClean, Suspicion: &Suspicion{At: second.AddDate(1000, 0, 0)}},
			Result{At: second, Verdict: VerdictClean, How: HowOffline},
			Result{At: second, Verdict: VerdictClean, How: HowOffline, CleanAt: second},
		},
		"a failed check keeps a suspicion": {
			&Result{At: first, Verdict: VerdictClean, Suspicion: &Suspicion{At: first}},
			Result{At: second, Verdict: VerdictFailed, How: HowOffline},
			Result{At: second, Verdict: VerdictFailed, How: HowOffline, Suspicion: &Suspicion{At: first}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, &test.want, test.newer.mergedWith(test.older))
		})
	}
}

// TestClockSetBackDoesNotSuspendChecks shows that a check recorded in the future is due at once,
// and a new check replaces it.
func TestClockSetBackDoesNotSuspendChecks(t *testing.T) {
	t.Parallel()

	const period = 24 * time.Hour

	now, year := time.Now(), 365*24*time.Hour

	for name, test := range map[string]struct{ tried, recorded, want time.Time }{
		"never tried":                 {time.Time{}, now.Add(-time.Hour), now.Add(-time.Hour)},
		"tried later":                 {now.Add(-time.Minute), now.Add(-time.Hour), now.Add(-time.Minute)},
		"recorded in the future":      {time.Time{}, now.Add(year), now.Add(-period)},
		"tried after the clock's set": {now.Add(-time.Minute), now.Add(year), now.Add(-time.Minute)},
		"tried in the future":         {now.Add(year), now.Add(-time.Hour), now.Add(-time.Hour)},
		"both in the future":          {now.Add(year), now.Add(year), now.Add(-period)},
		"the clock was set forward":   {time.Time{}, now.Add(-year), now.Add(-year)},
	} {
		since := checkedSince(test.tried, test.recorded, now, period)
		require.True(t, test.want.Equal(since), "%s: since %s, want %s", name, since, test.want)

		if test.recorded.After(now) && test.tried.IsZero() {
			require.False(t, nextCheck("volume", since, period).After(now), "%s: the check is due at once", name)
		}
	}

	found := &Result{At: now.Add(-time.Second)}
	require.True(t, (&Result{At: now}).supersedes(found, now), "a check that began later supersedes")
	require.False(t, (&Result{At: now.Add(-time.Minute)}).supersedes(found, now), "an older check does not supersede")
	require.False(t, (&Result{At: now.Add(year)}).supersedes(found, now), "a check in the future does not supersede")
}
