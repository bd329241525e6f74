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

func TestACleanStateIsVerifiedAndDumped(t *testing.T) {
	t.Parallel()

	dir := example(t)

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Empty(t, report.Notes, "want: a clean state has no notes")
	require.EqualValues(t, 6, report.Sequence, "want: the report has the last sequence number")
	require.Equal(t, map[string]int{"volumes": 6, "counts": 0}, report.Records)

	var out bytes.Buffer

	require.NoError(t, newFixture(dir, state.Options{}).Dump(&out))

	var dumped struct {
		Sequence    int                          `json:"sequence"`
		Collections map[string]map[string]volume `json:"collections"`
	}

	require.NoError(t, json.Unmarshal(out.Bytes(), &dumped))
	require.Equal(t, 6, dumped.Sequence, "want: the dump has the last sequence number")
	require.Equal(t, open(t, dir, state.Options{}).all(), dumped.Collections["volumes"])
	require.Equal(t, 6, strings.Count(out.String(), "\n      \"v"), "one record a line")

	_, err = newFixture(filepath.Join(dir, "missing"), state.Options{}).Verify(nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestVerifyNotes(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)

	write(t, dir, text[:len(text)-20])
	require.NoError(t, os.WriteFile(filepath.Join(dir, draftFile), []byte("half"), 0o600))
	loseMark(t, dir)

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Len(t, report.Notes, 2, "want: the report has both notes")
	require.EqualValues(t, 5, report.Sequence, "want: the report has the last sequence number")
	require.Equal(t, filled(text[:len(text)-20]), read(t, dir, journalFile), "verify changes nothing")

	require.NoError(t, open(t, dir, state.Options{}).Close())

	report, err = newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.Empty(t, report.Notes, "want: the repaired state has no notes")
}

func TestARepairKeepsTheRecordsBeforeTheDamage(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	lines := strings.SplitAfter(text, "\n")
	all := []string{"v0", "v1", "v2", "v3", "v4", "v5"}

	tests := map[string]struct {
		text string
		keys []string
	}{
		"a damaged change":   {strings.Replace(text, "pvc-4", "pvx-4", 1), all[:4]},
		"a missing change":   {removeLine(text, 5), all[:3]},
		"a damaged header":   {strings.Replace(text, `"sequence":3`, `"sequence": 3`, 1), all},
		"an edited record":   {strings.Replace(text, "pvc-1", "pvc-9", 1), all},
		"a removed record":   {removeLine(text, 2), all[1:]},
		"a record more":      {strings.Join(lines[:4], "") + oneRecord(t) + strings.Join(lines[4:], ""), append(all[:6:6], "w")},
		"another order":      {swapLines(text, 2, 4), all},
		"edits of two lines": {strings.Replace(strings.Replace(text, "pvc-1", "pvc-9", 1), "pvc-2", "pvc-8", 1), all},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			damaged := t.TempDir()
			write(t, damaged, test.text)

			done, err := newFixture(damaged, state.Options{Owner: "state repair"}).Repair()
			require.NoError(t, err)
			require.NotEmpty(t, done.Before.Findings, "want: the report before the repair has the damage")
			require.NotEmpty(t, done.Before.Findings[0].Fix, "want: the finding says how to repair")
			require.Equal(t, []string{filepath.Join(damaged, journalFile+".damaged-1")}, done.Backups)
			require.Equal(t, filled(test.text), read(t, damaged, journalFile+".damaged-1"))

			report, err := newFixture(damaged, state.Options{}).Verify(nil)
			require.NoError(t, err)
			require.True(t, report.Clean(), "%v", report)

			f := open(t, damaged, state.Options{})
			require.Equal(t, test.keys, keys(f))
			require.NoError(t, f.put("new", &volume{}))
			require.NoError(t, f.Close())

			done, err = newFixture(damaged, state.Options{Owner: "state repair"}).Repair()
			require.NoError(t, err)
			require.Empty(t, done.Backups, "what is clean is left alone")
		})
	}
}

func TestUnrepairableDirectoryIsKept(t *testing.T) {
	t.Parallel()

	text := unclean(t, example(t))

	for name, text := range map[string]string{
		"a record that is not JSON": strings.Replace(text, `"pvc-1"`, `"pvc-1`, 1),
		"half a base":               text[:len(text)/3],
		"a newer format":            strings.Replace(text, `"version":1`, `"version":2`, 1),
		"another program":           "{}\n",
		"no header":                 removeLine(text, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			damaged := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(damaged, journalFile), []byte(text), 0o600))

			done, err := newFixture(damaged, state.Options{Owner: "state repair"}).Repair()
			require.ErrorIs(t, err, state.ErrNotRepairable)
			require.NotEmpty(t, done.Before.Findings, "want: the report has the damage")
			require.Empty(t, done.Backups, "want: a refused repair makes no backup")
			require.Equal(t, text, read(t, damaged, journalFile))
		})
	}
}

// TestDocumentedJournal reads the example of docs/state-format.md.
func TestDocumentedJournal(t *testing.T) {
	t.Parallel()

	page := read(t, "../../docs", "state-format.md")
	_, behind, _ := strings.Cut(page, "## The journal\n\n```json\n")
	example, _, found := strings.Cut(behind, "```")
	require.True(t, found, "want: the page has an example")

	dir := t.TempDir()
	write(t, dir, example)

	f := open(t, dir, state.Options{})
	require.Equal(t, map[string]volume{"v1": {Name: "new"}, "v2": {Name: "pvc-2"}}, f.all())
}
