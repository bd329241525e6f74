package node

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNextCheck(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "id")
		// Two of the longest periods later there is a time still.
		since := time.Unix(0, rapid.Int64Range(0, int64(90*365*24*time.Hour)).Draw(t, "since"))
		period := time.Duration(rapid.Int64Range(1, int64(maxCheckPeriod)).Draw(t, "period"))

		next := nextCheck(id, since, period)
		require.Positive(t, next.Sub(since))
		require.LessOrEqual(t, next.Sub(since), period)
		require.Equal(t, period, nextCheck(id, next, period).Sub(next), "its place is the same in each period")
	})
}

func TestChecksAreSpread(t *testing.T) {
	t.Parallel()

	const volumes, parts = 1000, 10

	since, period := time.Now(), 24*time.Hour

	var counts [parts]int

	for i := range volumes {
		counts[int(nextCheck("volume-"+strconv.Itoa(i), since, period).Sub(since)*parts/(period+1))]++
	}

	for _, count := range counts {
		require.InDelta(t, volumes/parts, count, volumes/parts/2, "%v", counts)
	}
}

func TestCheckAfterAnother(t *testing.T) {
	t.Parallel()

	first, second := time.Unix(1000, 0), time.Unix(2000, 0)
	damaged := Check{At: first, Verdict: VerdictDamaged, Detail: "bad", How: HowOnline, Errors: 3, Since: first}
	clean := Check{At: first, Verdict: VerdictClean, How: HowOnline, CleanAt: first, Errors: 3, Since: first}

	for name, test := range map[string]struct {
		older *Check
		newer Check
		want  Check
	}{
		"the first": {
			nil,
			Check{At: second, Verdict: VerdictClean, How: HowStage, Since: second},
			Check{At: second, Verdict: VerdictClean, How: HowStage, CleanAt: second, Since: second},
		},
		"clean again": {
			&clean,
			Check{At: second, Verdict: VerdictClean, How: HowOnline, Errors: 5, Since: second},
			Check{At: second, Verdict: VerdictClean, How: HowOnline, CleanAt: second, Errors: 5, Since: second},
		},
		"a staging does not put the next one off": {
			&clean,
			Check{At: second, Verdict: VerdictRepaired, Detail: "mended", How: HowStage, Since: second},
			Check{At: second, Verdict: VerdictRepaired, Detail: "mended", How: HowStage, CleanAt: second, Since: first},
		},
		"where errors can't be read": {
			&clean,
			Check{At: second, Verdict: VerdictClean, How: HowOffline, Since: second},
			Check{At: second, Verdict: VerdictClean, How: HowOffline, CleanAt: second, Errors: 3, Since: second},
		},
		"damage": {
			&clean,
			Check{At: second, Verdict: VerdictDamaged, Detail: "worse", How: HowOnline, Errors: 9, Since: second},
			Check{At: second, Verdict: VerdictDamaged, Detail: "worse", How: HowOnline, CleanAt: first, Errors: 3, Since: second},
		},
		"damage is over": {
			&damaged,
			Check{At: second, Verdict: VerdictClean, How: HowOnline, Errors: 9, Since: second},
			Check{At: second, Verdict: VerdictClean, How: HowOnline, CleanAt: second, Errors: 9, Since: second},
		},
		"it could not look": {
			&clean,
			Check{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, Since: second},
			Check{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, CleanAt: first, Errors: 3, Since: second},
		},
		"and damage stays": {
			&damaged,
			Check{At: second, Verdict: VerdictFailed, Detail: "no tool", How: HowOnline, Since: second},
			Check{At: first, Verdict: VerdictDamaged, Detail: "bad", How: HowOnline, Errors: 3, Since: second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, &test.want, test.newer.after(test.older))
		})
	}
}
