package state_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// killed returns the files of a store with v0 to v3 that was killed while it wrote a change and
// compacted.
func killed(t *testing.T, dir string) *machine {
	t.Helper()

	m := newMachine(1)
	f := newFixture(dir, state.Options{FS: m, CompactAbove: -1})
	require.NoError(t, f.Open(t.Context()))

	for i, key := range []string{"v0", "v1", "v2", "v3"} {
		require.NoError(t, f.put(key, &volume{Bytes: int64(i), Note: "note of " + key}))

		if i == 1 {
			require.NoError(t, f.Compact(t.Context()))
		}
	}

	m.crashed = true
	_ = f.Close() // for its goroutines

	m = m.afterKill()
	m.load(dir, draftFile, "half")

	journal := m.names[filepath.Join(dir, journalFile)]
	copy(journal.now[len(bytes.TrimRight(journal.now, "\n"))+1:], `{"crc32c":"01`)

	return m
}

// edit changes the first record, in the machine and in the directory, from which Repair copies.
func edit(t *testing.T, m *machine, dir string) {
	t.Helper()

	journal := m.names[filepath.Join(dir, journalFile)]
	journal.now = bytes.Replace(journal.now, []byte("note of v0"), []byte("note of vx"), 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, journalFile), journal.now, 0o600))
}

// TestEachStepOfAStartFailsOnce fails each step of what reads a directory that is there already: the
// caller gets the error, no file is left open, and the next start finds all that was acknowledged.
func TestEachStepOfAStartFailsOnce(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		damaged   bool
		call      func(f fixture) error
		tolerated []string
		met       []string
	}{
		"open": {
			call:      func(f fixture) error { return f.Open(t.Context()) },
			tolerated: []string{"close " + markFile},
			met: []string{
				"remove " + draftFile, "open " + markFile, "read " + markFile, "open " + journalFile, "close " + journalFile,
				"sync " + journalFile, "forget " + journalFile, "read " + journalFile, "write " + journalFile, "truncate " + journalFile,
			},
		},
		"verify": {
			call:      func(f fixture) error { _, err := f.Verify(nil); return err },
			tolerated: []string{"close " + markFile, "close " + journalFile},
			met:       []string{"open " + draftFile, "open " + markFile, "read " + markFile, "open " + journalFile, "read " + journalFile},
		},
		"dump": {
			call:      func(f fixture) error { return f.Dump(&bytes.Buffer{}) },
			tolerated: []string{"close " + markFile, "close " + journalFile},
			met:       []string{"open " + journalFile, "read " + journalFile},
		},
		"repair": {
			damaged:   true,
			call:      func(f fixture) error { _, err := f.Repair(); return err },
			tolerated: []string{"close " + markFile, "close " + journalFile},
			met: []string{
				"write " + draftFile, "sync " + draftFile, "rename " + draftFile, "sync directory", "remove " + markFile, "close " + journalFile,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			met := map[string]bool{}

			for number := 1; len(met) < number; number++ {
				dir := t.TempDir()
				m := killed(t, dir)

				if test.damaged {
					edit(t, m, dir)
				}

				failing := &once{number: number, cause: syscall.EIO}
				m.fail = failing.fail
				f := newFixture(dir, state.Options{FS: m, CompactAbove: -1})
				err := failing.requireReported(t, func() error { return test.call(f) }, test.tolerated...)
				m.fail = nil

				require.NoError(t, f.Close())
				require.Zero(t, m.opened, "%s; files are left open", failing)

				if test.damaged {
					_, err := newFixture(dir, state.Options{FS: m}).Repair()
					require.NoError(t, err, failing)
				}

				next := open(t, dir, state.Options{FS: m, CompactAbove: -1})
				require.Equal(t, []string{"v0", "v1", "v2", "v3"}, keys(next), "%s", failing)
				require.NoError(t, next.Close())
				require.NotContains(t, m.names, filepath.Join(dir, draftFile), "%s", failing)

				if len(failing.failed) == 0 {
					require.NoError(t, err)

					break
				}

				met[failing.failed[0]] = true
			}

			for _, step := range test.met {
				require.Contains(t, met, step, "it was never made to fail")
			}
		})
	}
}

// TestVerifyVisitsEachRecord, until the visitor fails; of a damaged directory none.
func TestVerifyVisitsEachRecord(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := killed(t, dir)
	visited := map[string]volume{}

	report, err := newFixture(dir, state.Options{FS: m}).Verify(func(collection, key string, record json.RawMessage) error {
		var v volume

		require.Equal(t, "volumes", collection)
		require.NoError(t, json.Unmarshal(record, &v))

		visited[key] = v

		return nil
	})
	require.NoError(t, err)
	require.Len(t, report.Notes, 2, "%v", report.Notes)
	require.Equal(t, map[string]volume{
		"v0": {Note: "note of v0"}, "v1": {Bytes: 1, Note: "note of v1"},
		"v2": {Bytes: 2, Note: "note of v2"}, "v3": {Bytes: 3, Note: "note of v3"},
	}, visited)

	calls := 0
	_, err = newFixture(dir, state.Options{FS: m}).Verify(func(string, string, json.RawMessage) error {
		calls++

		return errRefused
	})
	require.ErrorIs(t, err, errRefused)
	require.Equal(t, 1, calls, "calls of a visitor that has failed")

	edit(t, m, dir)

	report, err = newFixture(dir, state.Options{FS: m}).Verify(func(string, string, json.RawMessage) error { return errRefused })
	require.NoError(t, err, "a damaged directory has nothing to visit")
	require.NotEmpty(t, report.Findings, "the edited record is damage")
	require.Len(t, report.Notes, 1, "the interrupted write is no note beside damage: %v", report.Notes)
}

// fullWriter takes some bytes.
type fullWriter struct{ left int }

func (w *fullWriter) Write(data []byte) (int, error) {
	n := min(len(data), w.left)
	w.left -= n

	if n < len(data) {
		return n, errRefused
	}

	return n, nil
}

// TestDumpFails: what is not whole is not taken for a dump.
func TestDumpFails(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := killed(t, dir)
	require.ErrorIs(t, newFixture(dir, state.Options{FS: m}).Dump(&fullWriter{left: 10}), errRefused)

	edit(t, m, dir)

	var out bytes.Buffer

	require.ErrorAs(t, newFixture(dir, state.Options{FS: m}).Dump(&out), new(*state.DamageError))
	require.Empty(t, out.String(), "what was written of a damaged directory")
}

// TestStoreReadsOnce: a store that was open, verified, dumped or repaired, or failed to open, reads
// nothing more.
func TestStoreReadsOnce(t *testing.T) {
	t.Parallel()

	calls := map[string]func(f fixture) error{
		"open":   func(f fixture) error { return errors.Join(f.Open(t.Context()), f.Close()) },
		"verify": func(f fixture) error { _, err := f.Verify(nil); return err },
		"dump":   func(f fixture) error { return f.Dump(&bytes.Buffer{}) },
		"repair": func(f fixture) error { _, err := f.Repair(); return err },
	}

	for first, begin := range calls {
		for second, again := range calls {
			f := newFixture(t.TempDir(), state.Options{})
			require.NoError(t, begin(f), first)
			require.ErrorIs(t, again(f), state.ErrNotOpen, "%s after %s", second, first)
		}
	}

	missing := filepath.Join(t.TempDir(), "missing")

	for name, call := range calls {
		if name == "open" {
			continue
		}

		require.ErrorIs(t, call(newFixture(missing, state.Options{})), os.ErrNotExist, name)
		require.NoDirExists(t, missing, name)
	}
}

// TestReportNamesTheRepair of each kind of damage, and how often the file is kept.
func TestReportNamesTheRepair(t *testing.T) {
	t.Parallel()

	text := unclean(t, example(t))

	for name, test := range map[string]struct{ text, fix string }{
		"a changed record of the base": {strings.Replace(text, "pvc-1", "pvc-9", 1), "keep the records as the file reads now"},
		"a changed change":             {strings.Replace(text, "pvc-4", "pvc-8", 1), "keep the changes up to 4 and drop this line and all that follow"},
		"another program's file":       {"{}\n", ""},
	} {
		dir := t.TempDir()
		write(t, dir, test.text)

		report, err := newFixture(dir, state.Options{}).Verify(nil)
		require.NoError(t, err)
		require.Len(t, report.Findings, 1, name)

		if test.fix == "" {
			require.Empty(t, report.Findings[0].Fix, name)

			continue
		}

		require.Contains(t, report.Findings[0].Fix, test.fix, name)

		for number := 1; number <= 2; number++ {
			write(t, dir, test.text)
			loseMark(t, dir)

			done, err := newFixture(dir, state.Options{}).Repair()
			require.NoError(t, err, name)
			require.Equal(t, []string{filepath.Join(dir, journalFile) + ".damaged-" + string(rune('0'+number))}, done.Backups, name)
		}
	}
}

// TestCloseLeavesNothing that a loss of power takes away, and no owner.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{FS: m, Owner: "line\nfeed"})
	require.NoError(t, f.put("a", &volume{}))
	require.NoError(t, f.UpdateUnsynced(t.Context(), func(tx *state.Tx) error { return f.counts.In(tx).Put("n", 1) }))
	require.Contains(t, read(t, dir, "lock"), " (line feed)\n")
	require.NoError(t, f.Close())
	require.NoError(t, f.Close(), "closing a closed store")
	require.Empty(t, read(t, dir, "lock"), "the owner in the lock file of a closed store")
	require.Empty(t, m.pending, "names that are not durable")

	for name, node := range m.names {
		require.Equal(t, string(node.durable), string(node.now), "%s is not durable", name)
	}
}
