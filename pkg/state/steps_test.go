package state_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// TestStepsAreInOrder: what a power failure may take is synced before a step that relies on it.
func TestStepsAreInOrder(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		// before leaves the files that run finds.
		before, run func(t *testing.T, f fixture, m *machine)
		want        []string
	}{
		"the first start": {
			run: func(t *testing.T, f fixture, _ *machine) { t.Helper(); require.NoError(t, f.Open(t.Context())) },
			want: []string{
				"create state.jsonl.new", "write state.jsonl.new", "sync state.jsonl.new", "write state.jsonl.new", "sync state.jsonl.new",
				"rename state.jsonl.new", "sync directory", "sync state.jsonl", "sync directory", "create durable.json",
			},
		},
		"a start after an interrupted write": {
			before: func(t *testing.T, f fixture, m *machine) {
				t.Helper()
				require.NoError(t, f.Open(t.Context()))
				require.NoError(t, f.put("a", &volume{}))

				m.fail = func(step string) error {
					if step != "write "+journalFile {
						return nil
					}

					m.crashed = true

					return errCrashed
				}

				require.ErrorIs(t, f.put("b", &volume{Note: strings.Repeat("n", 2000)}), errCrashed)
			},
			run:  func(t *testing.T, f fixture, _ *machine) { t.Helper(); require.NoError(t, f.Open(t.Context())) },
			want: []string{"sync state.jsonl", "sync directory", "write state.jsonl", "truncate state.jsonl", "sync state.jsonl"},
		},
		"changes and the end": {
			before: func(t *testing.T, f fixture, _ *machine) {
				t.Helper()
				require.NoError(t, f.Open(t.Context()))
				require.NoError(t, f.Close())
			},
			run: func(t *testing.T, f fixture, _ *machine) {
				t.Helper()
				require.NoError(t, f.Open(t.Context()))
				require.NoError(t, f.put("a", &volume{}))
				require.NoError(t, f.UpdateUnsynced(t.Context(), transactionNumber(1, f)))
				require.NoError(t, f.Close())
			},
			want: []string{
				"sync state.jsonl", "sync directory", "write state.jsonl", "sync state.jsonl", "write durable.json", "write state.jsonl",
				"sync state.jsonl", "write state.jsonl", "sync state.jsonl", "write durable.json", "sync durable.json", "sync directory",
			},
		},
		"a compaction": {
			before: func(t *testing.T, f fixture, _ *machine) {
				t.Helper()
				require.NoError(t, f.Open(t.Context()))
				require.NoError(t, f.put("a", &volume{}))
				require.NoError(t, f.Close())
			},
			run: func(t *testing.T, f fixture, _ *machine) {
				t.Helper()
				require.NoError(t, f.Open(t.Context()))
				require.NoError(t, f.Compact(t.Context()))
			},
			want: []string{
				"sync state.jsonl", "sync directory", "create state.jsonl.new", "write state.jsonl.new", "sync state.jsonl.new",
				"sync state.jsonl.new", "write state.jsonl.new", "sync state.jsonl.new", "rename state.jsonl.new", "sync directory",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir, m := t.TempDir(), newMachine(1)
			options := state.Options{FS: m, CompactAbove: -1}

			if test.before != nil {
				f := newFixture(dir, options)
				test.before(t, f, m)

				if m.crashed {
					_ = f.Close()
				}

				m = m.afterKill()
				options.FS = m
			}

			var steps []string

			m.fail = func(step string) error {
				if what, _, _ := strings.Cut(step, " "); what != "open" && what != "read" && what != "close" && what != "forget" {
					steps = append(steps, step)
				}

				return nil
			}

			f := newFixture(dir, options)
			test.run(t, f, m)

			m.fail = nil
			require.Equal(t, test.want, steps)
			require.NoError(t, f.Close())
		})
	}
}
