package state_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// transactionNumber returns a transaction of a fixed history, so that the number of
// records found after a crash determines their expected content.
func transactionNumber(i int, f fixture) func(tx *state.Tx) error {
	return func(tx *state.Tx) error {
		volumes := f.volumes.In(tx)

		err := volumes.Put(fmt.Sprint("v", i%7), &volume{Bytes: int64(i), Note: strings.Repeat("x", 100*(i%9))})
		if err != nil {
			return err
		}

		if i%3 == 0 {
			err = volumes.Delete(fmt.Sprint("v", (i+3)%7))
			if err != nil {
				return err
			}
		}

		return f.counts.In(tx).Put("last", i)
	}
}

func historyUpTo(last int) map[string]volume {
	expected := map[string]volume{}

	for i := 1; i <= last; i++ {
		expected[fmt.Sprint("v", i%7)] = volume{Bytes: int64(i), Note: strings.Repeat("x", 100*(i%9))}

		if i%3 == 0 {
			delete(expected, fmt.Sprint("v", (i+3)%7))
		}
	}

	return expected
}

// live plays the history from behind the last transaction that is there, with groups of several and
// compactions, during which changes are made and one of which fails in the middle. It returns the last
// transaction that has to be there after a restart: one that was not synced has to be after a kill.
func live(f fixture, m *machine, killed bool) (acknowledged int) {
	acknowledged, _ = f.counts.Get("last")
	next := acknowledged + 1
	updateBy := func(update func(context.Context, func(*state.Tx) error) error, survives bool) bool {
		if update(context.Background(), transactionNumber(next, f)) != nil {
			return false
		}

		if survives {
			acknowledged = next
		}

		next++

		return true
	}
	update := func() bool { return updateBy(f.Update, true) }

	for group := range 8 {
		for range group % 4 {
			if f.UpdateLazily(transactionNumber(next, f)) != nil {
				return acknowledged
			}

			next++
		}

		for range group % 3 {
			if !updateBy(f.UpdateUnsynced, killed) {
				return acknowledged
			}
		}

		if group%3 != 1 && !update() {
			return acknowledged
		}

		switch group {
		case 2, 5:
			if !compactWith(f, m, update) {
				return acknowledged
			}
		case 3, 6:
			m.fail = noSpaceForBase
			_ = f.Compact(context.Background())
			m.fail = nil
		}
	}

	return acknowledged
}

// compactWith compacts while the updates are made that the new journal has to take over: after its
// base is written, and after the first of them is copied. It returns whether these succeeded; the
// failure of the compaction must not matter.
func compactWith(f fixture, m *machine, update func() bool) bool {
	ok, updates := true, 0
	m.beforeSync = func(name string) {
		if name == draftFile && updates < 2 {
			updates++
			ok = ok && update()
		}
	}
	_ = f.Compact(context.Background())
	m.beforeSync = nil

	return ok
}

func noSpaceForBase(step string) error {
	if step == "write "+draftFile {
		return syscall.ENOSPC
	}

	return nil
}

func requireHistory(t *testing.T, f fixture, acknowledged int) {
	t.Helper()

	last, _ := f.counts.Get("last")
	require.GreaterOrEqual(t, last, acknowledged, "an acknowledged transaction is lost")

	expected := historyUpTo(last)
	require.Equal(t, expected, f.all())

	var sum int64
	for _, each := range expected {
		sum += each.Bytes
	}

	require.Equal(t, sum, *f.sum, "want: the index is the sum of the records")
}

// TestCrashAtEveryStep of two runs, the second of which starts on what the first crash left.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()

	restarts := map[string]func(*machine) *machine{
		"killed":    (*machine).afterKill,
		"power cut": (*machine).afterPowerCut,
	}

	for name, restart := range restarts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			steps := 1

			for crashAt := 1; crashAt <= steps; crashAt++ {
				for seed := range uint64(2) {
					m := newMachine(seed)
					m.crashAt = crashAt
					acknowledged := 0

					for range 3 {
						var lived bool

						acknowledged, lived = oneLife(t, dir, m, acknowledged, name == "killed")
						if lived && seed == 0 && crashAt == 1 {
							steps = m.steps
						}

						m = restart(m)
						// The last one lives to its end.
						m.crashAt = 1 + (crashAt*7+int(seed)*3)%60
					}

					m.crashAt = 0
					acknowledged, lived := oneLife(t, dir, m, acknowledged, name == "killed")
					require.True(t, lived, "want: the process lived until it was killed")
					require.Positive(t, acknowledged, "want: changes are acknowledged before the crash")

					steps = max(steps, m.steps)
				}
			}

			require.Greater(t, steps, 40, "want: the crashes cover all steps")
		})
	}
}

// oneLife opens, checks, plays and ends. lived is false if the crash came first.
func oneLife(t *testing.T, dir string, m *machine, acknowledged int, killed bool) (int, bool) {
	t.Helper()

	f := newFixture(dir, state.Options{FS: m, CompactAbove: -1})

	err := f.Open(t.Context())
	if err != nil {
		require.ErrorIs(t, err, errCrashed, "step %d", m.steps)

		return acknowledged, false
	}

	requireHistory(t, f, acknowledged)

	acknowledged = live(f, m, killed)

	if !m.crashed {
		requireHistory(t, f, acknowledged)
	}

	_ = f.Close()

	return acknowledged, !m.crashed
}
