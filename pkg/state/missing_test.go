package state_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// TestNothingAcknowledgedIsMissing damages the journal of a store that was killed,
// and of one that was closed, at every line and at random offsets: a start accepts
// what is left only if it has every acknowledged transaction.
func TestNothingAcknowledgedIsMissing(t *testing.T) {
	t.Parallel()

	const records = 400 // more than is preallocated, and than is decoded, at a time

	dir := t.TempDir()
	f := open(t, dir, state.Options{CompactAbove: -1})

	for i := range records {
		require.NoError(t, f.put(fmt.Sprint("v", i), &volume{Note: strings.Repeat("n", 300)}))
	}

	files := map[string]map[string]string{}

	keep := func(as string) {
		files[as] = map[string]string{}

		for _, name := range []string{journalFile, markFile} {
			files[as][name] = read(t, dir, name)
		}
	}

	keep("killed")
	require.NoError(t, f.Close())
	keep("closed")

	damages := map[string]func(text string, from, to int) string{
		"truncated":   func(text string, from, _ int) string { return text[:from] },
		"zero to end": func(text string, from, _ int) string { return text[:from] + strings.Repeat("\x00", len(text)-from) },
		"zero": func(text string, from, to int) string {
			return text[:from] + strings.Repeat("\x00", to-from) + text[to:]
		},
		"newline to end": func(text string, from, _ int) string { return text[:from] + strings.Repeat("\n", len(text)-from) },
	}

	for ending, kept := range files {
		for damage, apply := range damages {
			t.Run(ending+", "+damage, func(t *testing.T) {
				t.Parallel()

				trials(t, kept, records, apply, damage == "newline to end")
			})
		}
	}
}

// trials applies one kind of damage at many offsets. Only the mark reveals that
// newlines replaced transactions.
func trials(t *testing.T, files map[string]string, records int, apply func(string, int, int) string, needsMark bool) {
	t.Helper()

	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, uint64(records)))
	text := files[journalFile]
	refused := 0

	for i, offset := range damageOffsets(text, random) {
		m := newMachine(1)
		damaged := apply(text, offset, min(offset+1+random.IntN(4096), len(text)))
		m.load(dir, journalFile, damaged)

		if needsMark || i%2 == 0 {
			m.load(dir, markFile, files[markFile])
		}

		opened := newFixture(dir, state.Options{FS: m, CompactAbove: -1})

		err := opened.Open(t.Context())
		if err == nil {
			require.Equal(t, records, opened.volumes.Len(), "accepted with transactions missing, offset %d of %d", offset, len(text))
			require.NoError(t, opened.Close())

			continue
		}

		refused++

		var damage *state.DamageError

		require.ErrorAs(t, err, &damage, "offset %d", offset)
		require.Equal(t, filepath.Join(dir, journalFile), damage.File)
		require.NotEqual(t, text, damaged, "want: the record is damaged")

		if line := strings.Count(text[:offset], "\n") + 1; offset < len(strings.TrimRight(text, "\n")) {
			require.InDelta(t, line, damage.Line, 1, "line, offset %d: %v", offset, err)
		}
	}

	require.Positive(t, refused, "want: some damage is refused")
}

// damageOffsets are those around some lines' ends, around each preallocation's, and
// random ones.
func damageOffsets(text string, random *rand.Rand) []int {
	offsets := []int{0, 1, chunk - 1, chunk, chunk + 1, len(text) - 1}
	end := len(strings.TrimRight(text, "\n")) + 1

	for at := end; at > 0 && len(offsets) < 60; {
		offsets = append(offsets, at-2, at-1, at, at+1)
		at = strings.LastIndexByte(text[:at-1], '\n') + 1
	}

	for range 40 {
		offsets = append(offsets, random.IntN(end), random.IntN(len(text)))
	}

	return offsets
}

// TestMarkOutlivesTheJournal: a directory that held changes is not taken for a new one when its
// journal is gone.
func TestMarkOutlivesTheJournal(t *testing.T) {
	t.Parallel()

	dir := example(t)
	require.NoError(t, os.Remove(filepath.Join(dir, journalFile)))

	var damage *state.DamageError

	require.ErrorAs(t, newFixture(dir, state.Options{}).Open(t.Context()), &damage)
	require.Contains(t, damage.Reason, "missing")

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.False(t, report.Clean(), "want: the state is not reported clean")
}

// TestRepairDropsTheMark, so that what it drops is not required again.
func TestRepairDropsTheMark(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	lines := strings.SplitAfter(text, "\n")
	write(t, dir, strings.Join(lines[:5], ""))

	var damage *state.DamageError

	require.ErrorAs(t, newFixture(dir, state.Options{}).Open(t.Context()), &damage)
	require.Equal(t, 6, damage.Line, "want: the error has the line of the damage")
	require.Contains(t, damage.Reason, "changes up to 6 were durable")

	done, err := newFixture(dir, state.Options{Owner: "state repair"}).Repair()
	require.NoError(t, err)
	require.Equal(t, "keep the changes up to 4 and drop this line and all that follow", done.Before.Findings[0].Fix)

	f := open(t, dir, state.Options{})
	require.Equal(t, []string{"v0", "v1", "v2", "v3"}, keys(f))
	require.NoError(t, f.put("new", &volume{}))
	require.NoError(t, f.Close())
	require.NoError(t, open(t, dir, state.Options{}).Close())
}

// TestPartialChangeNamedByTheMarkIsDamage, for both reasons.
func TestPartialChangeNamedByTheMarkIsDamage(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	write(t, dir, text[:len(text)-20])
	requireDamage(t, dir, 7, "changes up to 6 were durable")
	requireDamage(t, dir, 7, "checksum is wrong")
}

// TestDamagedMark: the mark is a help that may be missing or unreadable.
func TestDamagedMark(t *testing.T) {
	t.Parallel()

	for _, text := range []string{"", "\x00\x00", "{}\n", strings.Replace(read(t, example(t), markFile), "6", "7", 1)} {
		dir := example(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, markFile), []byte(text), 0o600))
		require.Len(t, keys(open(t, dir, state.Options{})), 6, "%q", text)
	}
}
