package state_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// once fails two steps, the second of which is that many steps behind the first; 0 is one step only.
type once struct {
	number, behind int
	cause          error
	seen           int
	failed         []string
}

func (o *once) fail(step string) error {
	o.seen++
	if o.seen != o.number && o.seen != o.number+o.behind {
		return nil
	}

	o.failed = append(o.failed, step)

	return o.cause
}

func (o *once) String() string {
	return fmt.Sprintf("step %d, %q, failed with %v", o.number, o.failed, o.cause)
}

// requireReported requires that call returns the failure of a step that is made in it. tolerated are
// the steps that may fail without an effect.
func (o *once) requireReported(t *testing.T, call func() error, tolerated ...string) error {
	t.Helper()

	before := len(o.failed)
	err := call()

	if len(o.failed) > before {
		if slices.Contains(tolerated, o.failed[before]) {
			return err
		}

		require.ErrorIs(t, err, o.cause, "%s; the caller did not get the error", o)
	}

	return err
}

// TestEachStepFailsOnce fails each step of a store's life, from its first Open to its end: alone, and
// with a step soon after it, which is that of a cleanup. What was acknowledged must be there afterwards,
// and the next store must open. No compaction precedes that: it would write the damage over.
func TestEachStepFailsOnce(t *testing.T) {
	t.Parallel()

	for _, end := range []string{"closed", "killed", "power cut"} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			t.Run(end+", "+cause.Error(), func(t *testing.T) {
				t.Parallel()

				met := map[string]bool{}

				for number, more := 1, true; more; number++ {
					more = false

					for behind := range 3 {
						failing := &once{number: number, behind: behind, cause: cause}
						liveWith(t, newMachine(uint64(number)), failing, end)

						for _, each := range failing.failed {
							met[each], more = true, true
						}
					}
				}

				for step := range strings.FieldsFuncSeq(stepsOfALife, func(r rune) bool { return r == '\n' }) {
					require.Contains(t, met, step, "it was never made to fail")
				}
			})
		}
	}
}

// stepsOfALife must be made to fail at the least.
const stepsOfALife = `create state.jsonl.new
write state.jsonl.new
sync state.jsonl.new
rename state.jsonl.new
remove state.jsonl.new
close state.jsonl.new
sync directory
open state.jsonl
read state.jsonl
forget state.jsonl
write state.jsonl
sync state.jsonl
truncate state.jsonl
close state.jsonl
create durable.json
write durable.json`

// liveWith has a store live on a machine on which a step fails, ends it, and has others follow it.
func liveWith(t *testing.T, m *machine, failing *once, end string) {
	t.Helper()

	dir := t.TempDir()
	m.fail = failing.fail
	f := newFixture(dir, state.Options{FS: m, CompactAbove: -1, LazyFlush: 1 << 40, RetrySpace: 1 << 40})
	acknowledged := 0

	if failing.requireReported(t, func() error { return f.Open(t.Context()) }) == nil {
		acknowledged = play(t, m, f, failing)
		requireHistory(t, f, acknowledged)
	}

	var next *machine

	switch end {
	case "closed":
		_ = failing.requireReported(t, f.Close, "write durable.json")
		m.fail = nil
		next = m
	default:
		m.fail, m.crashed = nil, true
		_ = f.Close() // for its goroutines

		next = m.afterKill()
		if end == "power cut" {
			next = m.afterPowerCut()
		}
	}

	require.Zero(t, m.opened, "%s; files are left open", failing)

	report, err := newFixture(dir, state.Options{FS: next}).Verify(nil)
	require.NoError(t, err, failing)
	require.Empty(t, report.Findings, "%s; the next store does not open", failing)

	// The second one finds what the first one has repaired.
	for range 2 {
		f = newFixture(dir, state.Options{FS: next, CompactAbove: -1})
		require.NoError(t, f.Open(t.Context()), failing)
		requireHistory(t, f, acknowledged)

		acknowledged = play(t, next, f, failing)

		require.NoError(t, f.Close(), failing)
	}
}

// play makes some transactions, with a compaction between them, and goes on after a failure, as a
// driver does. It returns the number of the last one that was acknowledged.
func play(t *testing.T, m *machine, f fixture, failing *once) (acknowledged int) {
	t.Helper()

	acknowledged, _ = f.counts.Get("last")

	for i := range 6 {
		err := failing.requireReported(t, func() error {
			return f.Update(t.Context(), transactionNumber(acknowledged+1, f))
		}, "write durable.json")
		if err == nil {
			acknowledged++
		}

		if i == 2 {
			// Changes are made after the base is written and after they are copied once, not at the end,
			// while the compaction keeps them waiting. Its failure loses nothing.
			syncs := 0
			m.beforeSync = func(name string) {
				if name != draftFile || syncs == 2 {
					return
				}

				syncs++

				err := f.Update(t.Context(), transactionNumber(acknowledged+1, f))
				if err == nil {
					acknowledged++
				}
			}
			_ = failing.requireReported(t, func() error { return f.Compact(t.Context()) }, "close state.jsonl", "write durable.json")
			m.beforeSync = nil
		}
	}

	return acknowledged
}
