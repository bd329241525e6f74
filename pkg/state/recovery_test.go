package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// example makes a directory with three volumes in the base and three more as changes, and returns it
// closed.
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

func TestAReopenedStateHasAllRecords(t *testing.T) {
	t.Parallel()

	dir := example(t)

	for range 2 {
		f := open(t, dir, state.Options{})
		require.Equal(t, 6, f.volumes.Len(), "want: the state has all records again")
		require.EqualValues(t, 0+1+2+3+4+5, *f.sum, "want: the index is the sum of the records")

		key, v, ok := f.volumes.Lookup("name", "pvc-4")
		require.True(t, ok, "want: the record is there")
		require.Equal(t, "v4", key)
		require.EqualValues(t, 4, v.Bytes, "want: the record has its value")
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

// TestTheDroppedEndIsDurable: a loss of power after the start does not bring back what the start has dropped.
func TestTheDroppedEndIsDurable(t *testing.T) {
	t.Parallel()

	text := unclean(t, example(t))
	m, dir := newMachine(1), t.TempDir()
	m.load(dir, journalFile, filled(text[:len(text)-2]))
	open(t, dir, state.Options{FS: m})

	journal := m.names[filepath.Join(dir, journalFile)]
	require.Equal(t, string(journal.now), string(journal.durable), "want: the journal is synced")
	require.NotEqual(t, filled(text[:len(text)-2]), string(journal.durable), "want: the end was dropped")
}

// TestTornHead replaces the beginning of the last line by newlines, at each byte, as a loss of power
// does if only the sectors behind it were written.
func TestTornHead(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	lastLine := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1

	for begin := lastLine + 1; begin < len(text); begin++ {
		torn := text[:lastLine] + strings.Repeat("\n", begin-lastLine) + text[begin:]
		require.NoError(t, os.WriteFile(filepath.Join(dir, journalFile), []byte(filled(torn)), 0o600))
		loseMark(t, dir)

		f := open(t, dir, state.Options{})
		require.Equal(t, 5, f.volumes.Len(), "begins at %d", begin)
		require.NoError(t, f.Close())
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
	require.Len(t, lines, 6, "want: the journal has all lines")

	lines[3] = strings.Repeat("\n", len(lines[3]))
	write(t, dir, strings.Join(lines, "")+strings.Repeat("\n", 100))

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

	for key := range f.volumes.Ascend("") {
		found = append(found, key)
	}

	return found
}

// TestFlippedByte changes one byte of each line but the last: the line is named, and nothing is
// changed.
func TestFlippedByte(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := journalText(t, dir)
	lines := strings.SplitAfter(text, "\n")
	empty := t.TempDir()
	start := 0

	// The last line is left alone: it only says that the end was clean.
	for i, line := range lines[:len(lines)-2] {
		for at := range len(line) {
			changed := []byte(text)
			changed[start+at] ^= 0x08

			m := newMachine(1)
			m.load(empty, journalFile, filled(string(changed)))

			err := newFixture(empty, state.Options{FS: m}).Open(t.Context())

			var damage *state.DamageError

			require.ErrorAs(t, err, &damage, "line %d byte %d", i+1, at)
			require.Equal(t, filepath.Join(empty, journalFile), damage.File)
			require.Equal(t, i+1, damage.Line, "byte %d: %v", at, err)
			require.Equal(t, filled(string(changed)), string(m.names[filepath.Join(empty, journalFile)].now))
		}

		start += len(line)
	}
}

func TestDamageIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()

	dir := example(t)
	text := unclean(t, dir)
	lines := strings.SplitAfter(text, "\n")
	base := strings.Join(lines[:4], "")

	tests := map[string]struct {
		text   string // "" removes the file
		line   int
		reason string
	}{
		"a change is missing":       {base + lines[5] + lines[6], 5, "follows"},
		"a change is there twice":   {base + lines[4] + lines[4], 6, "follows"},
		"an empty line within":      {base + "\n" + lines[5], 5, "empty"},
		"rubbish within":            {base + "rubbish\n" + lines[5], 5, "form"},
		"no header":                 {strings.Join(lines[1:], ""), 1, "header"},
		"an empty file":             {"\n", 1, "header"},
		"nothing but a space":       {" ", 1, "header"},
		"another program's":         {"{}\n", 1, "header"},
		"no journal":                {"", 0, "missing"},
		"a newer format":            {strings.Replace(text, `"version":1`, `"version":2`, 1), 1, "version 2"},
		"an edited header":          {strings.Replace(text, `"sequence":3`, `"sequence":2`, 1), 1, "checksum"},
		"an edited record":          {strings.Replace(text, "pvc-1", "pvc-9", 1), 3, "checksum"},
		"rubbish in the base":       {lines[0] + "rubbish\n" + strings.Join(lines[2:], ""), 2, "form"},
		"a removed record":          {removeLine(text, 3), 4, "2 of 3"},
		"a removed record, no more": {removeLine(base, 3), 4, "2 of 3"},
		"an empty line in the base": {lines[0] + lines[1] + "\n" + lines[3] + lines[4], 3, "1 of 3"},
		"one record more":           {base + oneRecord(t) + lines[4], 5, "behind the last of 3"},
		"another order":             {swapLines(text, 2, 3), 3, "order"},
		"a record among changes":    {strings.Join(lines[:5], "") + oneRecord(t), 6, "behind the last of 3"},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			damaged := t.TempDir()
			if test.text != "" {
				write(t, damaged, test.text)
			} else {
				require.NoError(t, os.WriteFile(filepath.Join(damaged, markFile), []byte(read(t, dir, markFile)), 0o600))
			}

			requireDamage(t, damaged, test.line, test.reason)
		})
	}

	t.Run("half a base", func(t *testing.T) {
		t.Parallel()

		for _, length := range []int{len(lines[0]) + len(lines[1]), len(lines[0]) + len(lines[1]) + 20} {
			damaged := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(damaged, journalFile), []byte(base[:length]), 0o600))
			requireDamage(t, damaged, 3, "the file ends")
		}
	})
}

// requireDamage opens and verifies a damaged directory.
func requireDamage(t *testing.T, dir string, line int, reason string) {
	t.Helper()

	err := newFixture(dir, state.Options{}).Open(t.Context())

	var damage *state.DamageError

	require.ErrorAs(t, err, &damage)
	require.Equal(t, filepath.Join(dir, journalFile), damage.File, "%v", err)
	require.Equal(t, line, damage.Line, "%v", err)
	require.Contains(t, damage.Reason, reason)
	require.Contains(t, err.Error(), "touchstone state verify")

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.False(t, report.Clean(), "want: the state is not reported clean")
	require.Contains(t, fmt.Sprint(report.Findings), reason)
}

// oneRecord is a line of a base, of a record with the key w.
func oneRecord(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	f := open(t, dir, state.Options{})
	require.NoError(t, f.put("w", &volume{}))
	require.NoError(t, f.Compact(t.Context()))
	require.NoError(t, f.Close())

	return strings.SplitAfter(journalText(t, dir), "\n")[1]
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

func TestAnUnknownCollectionIsDamage(t *testing.T) {
	t.Parallel()

	for name, compact := range map[string]bool{"change": false, "base": true} {
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
			require.Equal(t, filepath.Join(dir, journalFile), damage.File)
			require.Contains(t, damage.Reason, `"volumes"`)
		})
	}
}

func TestFilesOfTheOldFormatAreLeftAlone(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"state.json", "journal.jsonl"} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("{}\n"), 0o600))

		err := newFixture(dir, state.Options{}).Open(t.Context())
		require.ErrorIs(t, err, state.ErrOldFormat)
		errtext.Require(t, err, filepath.Join(dir, name))
		errtext.Require(t, err, "move the files of this one away")

		_, err = newFixture(dir, state.Options{}).Verify(nil)
		require.ErrorIs(t, err, state.ErrOldFormat)
		require.NoFileExists(t, filepath.Join(dir, journalFile))
		require.Equal(t, "{}\n", read(t, dir, name))
	}
}

func TestALockedStateNamesItsOwner(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
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

		_, err := newFixture(dir, state.Options{}).Verify(nil)
		refuse(err)

		_, err = newFixture(dir, state.Options{Owner: "state repair"}).Repair()
		refuse(err)
		refuse(newFixture(dir, state.Options{}).Dump(os.Stderr))

		require.NoError(t, f.Close())
		require.NoError(t, open(t, dir, state.Options{}).Close())
	})
}
