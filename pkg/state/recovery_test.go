package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// example makes a directory with a snapshot of three volumes and a journal with
// three more, and returns it closed.
func example(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	f := open(t, dir, state.Options{})

	for i := range 6 {
		require.NoError(t, f.put(fmt.Sprint("v", i), &volume{Name: fmt.Sprint("pvc-", i), Bytes: int64(i)}))

		if i == 2 {
			require.NoError(t, f.Compact(t.Context()))
		}
	}

	require.NoError(t, f.Close())

	return dir
}

func TestReopen(t *testing.T) {
	t.Parallel()

	dir := example(t)

	for range 2 {
		f := open(t, dir, state.Options{})
		require.Equal(t, 6, f.volumes.Len())
		require.EqualValues(t, 0+1+2+3+4+5, *f.sum)

		key, v, ok := f.volumes.Lookup("name", "pvc-4")
		require.True(t, ok, "want: the record is there")
		require.Equal(t, "v4", key)
		require.EqualValues(t, 4, v.Bytes)
		require.NoError(t, f.Close())
	}
}

// TestTornTail cuts the last line at each byte, as a loss of power does to a batch
// that was not synced: what was preallocated follows. A part of the next
// preallocation may follow as well.
func TestTornTail(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	lastLine := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1

	for name, behind := range map[string]string{
		"preallocated":                 "",
		"preallocation that was short": "\n\n\n",
		"preallocation without data":   strings.Repeat("\x00", 3000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			torn := copyState(t, dir)

			for cut := lastLine; cut < len(text)-1; cut++ {
				require.NoError(t, os.WriteFile(filepath.Join(torn, journalFile), []byte(filled(text[:cut])+behind), 0o600))
				loseMark(t, torn)

				f := open(t, torn, state.Options{})
				require.Equal(t, 5, f.volumes.Len(), "cut at %d", cut)
				require.NoError(t, f.put("new", &volume{Bytes: 7}))
				require.NoError(t, f.Close())

				f = open(t, torn, state.Options{})
				require.Equal(t, 6, f.volumes.Len(), "cut at %d", cut)
				require.NoError(t, f.Close())
			}
		})
	}
}

// TestTornGroup loses a line in the middle of a group that shared one fsync, whose
// commits have not returned.
func TestTornGroup(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{LazyFlush: 1 << 40})
	require.NoError(t, f.put("durable", &volume{}))

	for i := range 3 {
		require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error {
			return f.volumes.In(tx).Put(fmt.Sprint("group", i), &volume{})
		}))
	}

	require.NoError(t, f.Close())

	lines := strings.SplitAfter(unclean(t, dir), "\n")
	require.Len(t, lines, 6)

	lines[3] = strings.Repeat("\n", len(lines[3]))
	write(t, dir, journalFile, strings.Join(lines, "")+strings.Repeat("\n", 100))

	loseMark(t, dir)

	f = open(t, dir, state.Options{})
	require.Equal(t, []string{"durable", "group0"}, keys(f))
	require.NoError(t, f.put("next", &volume{}))
	require.NoError(t, f.Close())
	require.NotContains(t, read(t, dir, journalFile), "group2")

	f = open(t, dir, state.Options{})
	require.Equal(t, []string{"durable", "group0", "next"}, keys(f))
}

func keys(f fixture) []string {
	found := []string{}

	f.volumes.Ascend("", func(key string, _ *volume) bool {
		found = append(found, key)

		return true
	})

	return found
}

// TestFlippedByte changes one byte of each line but the last: the file and the
// line are named, and nothing is changed.
func TestFlippedByte(t *testing.T) {
	t.Parallel()

	dir := example(t)

	snapshot, journal := read(t, dir, snapshotFile), journalText(t, dir)

	padded := map[string]func(string) string{snapshotFile: func(text string) string { return text }, journalFile: filled}

	for name, text := range map[string]string{snapshotFile: snapshot, journalFile: journal} {
		lines := strings.SplitAfter(text, "\n")
		empty := t.TempDir()
		start := 0

		for i, line := range lines[:len(lines)-2] {
			for at := range len(line) {
				// The last line of each file is left alone: that of the journal
				// only says that the end was clean.
				changed := []byte(text)
				changed[start+at] ^= 0x08

				m := newMachine(1)
				m.load(empty, snapshotFile, snapshot)
				m.load(empty, journalFile, filled(journal))
				m.load(empty, name, padded[name](string(changed)))

				err := newFixture(empty, state.Options{FS: m}).Open(t.Context())

				var damage *state.DamageError

				require.ErrorAs(t, err, &damage, "%s line %d byte %d", name, i+1, at)
				require.Equal(t, filepath.Join(empty, name), damage.File)
				require.Contains(t, allowedLines(name, lines, i, at), damage.Line, "%s line %d byte %d: %v", name, i+1, at, err)
				require.Equal(t, padded[name](string(changed)), string(m.names[filepath.Join(empty, name)].now))
			}

			start += len(line)
		}
	}
}

// allowedLines returns the lines that may be named for a changed byte.
func allowedLines(name string, lines []string, line, at int) []int {
	allowed := []int{line + 1}

	structural := name == snapshotFile && !strings.HasPrefix(lines[line], `      "`)
	if structural || at < 7 || at == len(lines[line])-1 || at == len(lines[line])-2 {
		// What is only covered by the checksum of the whole file is found
		// there or where it stops making sense.
		for i := line + 1; i <= len(lines); i++ {
			allowed = append(allowed, i)
		}
	}

	return allowed
}

func TestDamage(t *testing.T) {
	t.Parallel()

	dir := example(t)
	journal := strings.SplitAfter(unclean(t, dir), "\n")
	snapshot := read(t, dir, snapshotFile)
	join := func(lines ...string) string { return strings.Join(lines, "") }

	tests := map[string]struct {
		file   string
		text   string // "" removes the file
		named  string
		line   int
		reason string
	}{
		"a line is missing":       {journalFile, join(journal[0], journal[2], journal[3]), journalFile, 2, "follows"},
		"a line is there twice":   {journalFile, join(journal[0], journal[1], journal[1]), journalFile, 3, "follows"},
		"an empty line within":    {journalFile, join(journal[0], "\n", journal[2]), journalFile, 2, "empty"},
		"rubbish within":          {journalFile, join(journal[0], "rubbish\n", journal[2]), journalFile, 2, "form"},
		"no head":                 {journalFile, join(journal[1:]...), journalFile, 1, "head"},
		"empty journal":           {journalFile, "\n", journalFile, 1, "form"},
		"nothing in the journal":  {journalFile, " ", journalFile, 1, "form"},
		"no journal":              {journalFile, "", journalFile, 0, "missing"},
		"no snapshot":             {snapshotFile, "", snapshotFile, 0, "missing"},
		"empty snapshot":          {snapshotFile, " ", snapshotFile, 1, "ends"},
		"half a snapshot":         {snapshotFile, snapshot[:len(snapshot)/2], snapshotFile, 9, "ends"},
		"a newer snapshot format": {snapshotFile, strings.Replace(snapshot, `"version": 1`, `"version": 2`, 1), snapshotFile, 3, "version 2"},
		"an edited record":        {snapshotFile, strings.Replace(snapshot, "pvc-1", "pvc-9", 1), snapshotFile, 10, "checksum"},
		"a removed record":        {snapshotFile, removeLine(snapshot, 10), snapshotFile, 13, "3 records"},
		"another order":           {snapshotFile, swapLines(snapshot, 9, 10), snapshotFile, 10, "order"},
		"more behind the end":     {snapshotFile, snapshot + "{}\n", snapshotFile, 17, "behind"},
		"an older journal":        {journalFile, join(journal[0], journal[1])[:0] + oldJournal(t), journalFile, 0, "before the snapshot"},
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

			err := newFixture(damaged, state.Options{}).Open(t.Context())

			var damage *state.DamageError

			require.ErrorAs(t, err, &damage)
			require.Equal(t, filepath.Join(damaged, test.named), damage.File, "%v", err)
			require.Equal(t, test.line, damage.Line, "%v", err)
			require.Contains(t, damage.Reason, test.reason)
			require.Contains(t, err.Error(), "touchstone state verify")

			report, err := state.Verify(damaged)
			require.NoError(t, err)
			require.False(t, report.Clean(), "want: the state is not reported clean")
			require.Contains(t, fmt.Sprint(report.Findings), test.reason)
		})
	}
}

func removeLine(text string, number int) string {
	lines := strings.SplitAfter(text, "\n")

	return strings.Join(append(append([]string{}, lines[:number-1]...), lines[number:]...), "")
}

func swapLines(text string, one, other int) string {
	lines := strings.SplitAfter(text, "\n")
	lines[one-1], lines[other-1] = lines[other-1], lines[one-1]

	return strings.Join(lines, "")
}

// oldJournal is one that ends long before the snapshot does.
func oldJournal(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	require.NoError(t, open(t, dir, state.Options{}).Close())

	return journalText(t, dir)
}

func TestUnknownCollection(t *testing.T) {
	t.Parallel()

	for name, compact := range map[string]bool{journalFile: false, snapshotFile: true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			f := open(t, dir, state.Options{})
			require.NoError(t, f.put("v", &volume{}))

			if compact {
				require.NoError(t, f.Compact(t.Context()))
			}

			require.NoError(t, f.Close())

			s := state.New(dir, state.Options{})
			state.Register[int](s, "counts")

			var damage *state.DamageError

			err := s.Open(t.Context())
			require.ErrorAs(t, err, &damage)
			require.Equal(t, filepath.Join(dir, name), damage.File)
			require.Contains(t, damage.Reason, `"volumes"`)
		})
	}
}

func TestLock(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{Owner: "serving /run/csi.sock"})

	refuse := func(err error) {
		var locked *state.LockedError

		require.ErrorAs(t, err, &locked)
		require.Equal(t, dir, locked.Dir)
		require.Contains(t, err.Error(), "serving /run/csi.sock")
		require.Contains(t, err.Error(), fmt.Sprint("process ", os.Getpid()))
	}

	refuse(newFixture(dir, state.Options{}).Open(t.Context()))

	_, err := state.Verify(dir)
	refuse(err)

	_, err = state.Repair(dir)
	refuse(err)
	refuse(state.Dump(dir, os.Stderr))

	require.NoError(t, f.Close())
	require.NoError(t, open(t, dir, state.Options{}).Close())
}
