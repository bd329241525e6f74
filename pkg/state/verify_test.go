package state_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

func TestVerifyAndDump(t *testing.T) {
	t.Parallel()

	dir := example(t)

	report, err := state.Verify(dir)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Empty(t, report.Notes)
	require.EqualValues(t, 6, report.Sequence)
	require.Equal(t, map[string]int{"volumes": 6, "counts": 0}, report.Records)

	var out bytes.Buffer

	require.NoError(t, state.Dump(dir, &out))

	var dumped struct {
		Sequence    int                          `json:"sequence"`
		Collections map[string]map[string]volume `json:"collections"`
	}

	require.NoError(t, json.Unmarshal(out.Bytes(), &dumped))
	require.Equal(t, 6, dumped.Sequence)
	require.Equal(t, open(t, dir, state.Options{}).all(), dumped.Collections["volumes"])
	require.Equal(t, 6, strings.Count(out.String(), "\n      \"v"), "one record a line")

	_, err = state.Verify(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestVerifyNotes(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)

	write(t, dir, journalFile, text[:len(text)-20])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json.new"), []byte("half"), 0o600))
	loseMark(t, dir)

	report, err := state.Verify(dir)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Len(t, report.Notes, 2)
	require.EqualValues(t, 5, report.Sequence)
	require.Equal(t, filled(text[:len(text)-20]), read(t, dir, journalFile), "verify changes nothing")

	require.NoError(t, open(t, dir, state.Options{}).Close())

	report, err = state.Verify(dir)
	require.NoError(t, err)
	require.Empty(t, report.Notes)
}

func TestRepair(t *testing.T) {
	t.Parallel()

	dir := example(t)
	journal := strings.SplitAfter(unclean(t, dir), "\n")
	snapshot := read(t, dir, snapshotFile)
	join := func(lines ...string) string { return strings.Join(lines, "") }

	tests := map[string]struct {
		file, text string // no text removes the file
		keys       []string
	}{
		"a damaged line":     {journalFile, join(journal[0], journal[1], strings.Replace(journal[2], "pvc", "pvx", 1), journal[3]), []string{"v0", "v1", "v2", "v3"}},
		"a missing line":     {journalFile, join(journal[0], journal[2], journal[3]), []string{"v0", "v1", "v2"}},
		"a damaged head":     {journalFile, join("x"+journal[0], journal[1], journal[2], journal[3]), []string{"v0", "v1", "v2", "v3", "v4", "v5"}},
		"no journal":         {journalFile, "", []string{"v0", "v1", "v2"}},
		"an older journal":   {journalFile, oldJournal(t), []string{"v0", "v1", "v2"}},
		"an edited record":   {snapshotFile, strings.Replace(snapshot, "pvc-1", "pvc-9", 1), []string{"v0", "v1", "v2", "v3", "v4", "v5"}},
		"a removed record":   {snapshotFile, removeLine(snapshot, 9), []string{"v1", "v2", "v3", "v4", "v5"}},
		"another formatting": {snapshotFile, strings.ReplaceAll(snapshot, "\n", " "), []string{"v0", "v1", "v2", "v3", "v4", "v5"}},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			damaged := copyState(t, dir)
			if test.text == "" {
				require.NoError(t, os.Remove(filepath.Join(damaged, test.file)))
			} else {
				write(t, damaged, test.file, test.text)
			}

			before := read(t, damaged, snapshotFile)

			done, err := state.Repair(damaged)
			require.NoError(t, err)
			require.NotEmpty(t, done.Before.Findings)
			require.NotEmpty(t, done.Before.Findings[0].Fix)
			require.Contains(t, done.Backups, filepath.Join(damaged, snapshotFile+".damaged-1"))
			require.Equal(t, before, read(t, damaged, snapshotFile+".damaged-1"))

			if test.text != "" {
				require.Contains(t, []string{test.text, filled(test.text)}, read(t, damaged, test.file+".damaged-1"))
			}

			report, err := state.Verify(damaged)
			require.NoError(t, err)
			require.True(t, report.Clean(), "%v", report)

			f := open(t, damaged, state.Options{})
			require.Equal(t, test.keys, keys(f))
			require.NoError(t, f.put("new", &volume{}))
			require.NoError(t, f.Close())

			done, err = state.Repair(damaged)
			require.NoError(t, err)
			require.Empty(t, done.Backups, "what is clean is left alone")
		})
	}
}

func TestNotRepairable(t *testing.T) {
	t.Parallel()

	dir := example(t)
	snapshot := read(t, dir, snapshotFile)

	for name, text := range map[string]string{
		"not JSON":        snapshot[:len(snapshot)/2],
		"a newer format":  strings.Replace(snapshot, `"version": 1`, `"version": 2`, 1),
		"missing":         "",
		"an older one":    strings.Replace(snapshot, `"sequence": 3`, `"sequence": 2`, 1),
		"another program": "{}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			damaged := copyState(t, dir)
			if text == "" {
				require.NoError(t, os.Remove(filepath.Join(damaged, snapshotFile)))
			} else {
				write(t, damaged, snapshotFile, text)
			}

			before := read(t, damaged, journalFile)
			done, err := state.Repair(damaged)
			require.ErrorIs(t, err, state.ErrNotRepairable)
			require.NotEmpty(t, done.Before.Findings)
			require.Empty(t, done.Backups)
			require.Equal(t, before, read(t, damaged, journalFile))

			if text != "" {
				require.Equal(t, text, read(t, damaged, snapshotFile))
			}
		})
	}
}
