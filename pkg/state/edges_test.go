package state_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// sealed is a line with its checksum, of what follows that.
func sealed(rest string) string {
	return fmt.Sprintf(`{"crc32c":"%08x",%s`+"\n", crc32.Checksum([]byte(rest), crc32.MakeTable(crc32.Castagnoli)), rest)
}

// TestMalformedLinesAreDamage: they have a right checksum and a content that no store writes.
func TestMalformedLinesAreDamage(t *testing.T) {
	t.Parallel()

	lines := strings.SplitAfter(unclean(t, example(t)), "\n")
	base := strings.Join(lines[:4], "")
	change := func(sequence, batch string) string {
		return sealed(sequence + batch + `"collection":"volumes","key":"w","record":{"bytes":1}}`)
	}

	for name, test := range map[string]struct {
		text, reason string
		line         int
	}{
		"a change":                     {base + change(`"sequence":4,`, `"batch":4,`), "", 0},
		"a change of an earlier batch": {base + lines[4] + change(`"sequence":5,`, `"batch":4,`), "", 0},
		"no batch":                     {base + change(`"sequence":4,`, ""), "form", 5},
		"batch 0":                      {base + change(`"sequence":4,`, `"batch":0,`), "form", 5},
		"a later batch":                {base + change(`"sequence":4,`, `"batch":5,`), "form", 5},
		"no key":                       {base + sealed(`"sequence":4,"batch":4,"collection":"volumes","record":{}}`), "form", 5},
		"no collection":                {base + sealed(`"sequence":4,"batch":4,"key":"w","record":{}}`), "form", 5},
		"no record":                    {base + sealed(`"sequence":4,"batch":4,"collection":"volumes","key":"w"}`), "form", 5},
		"no object":                    {base + sealed(`"sequence":4,`), "form", 5},
		"a second header":              {base + lines[0], "form", 5},
		"closed":                       {base + sealed(`"closed":3}`), "", 0},
		"closed too early":             {base + sealed(`"closed":2}`), "follows", 5},
		"closed too late":              {base + lines[4] + sealed(`"closed":5}`), "follows", 6},
		"closed within a transaction":  {base + change(`"sequence":4,"batch":4,`, `"more":true,`) + sealed(`"closed":4}`), "follows", 6},
		"a deletion in the base": {
			strings.Join(lines[:3], "") + sealed(`"collection":"volumes","key":"v2","record":null}`) + lines[4],
			"form", 4,
		},
		"a record of the base twice": {strings.Join(lines[:3], "") + lines[2] + lines[4], "order", 4},
		"a record that is nil":       {base + sealed(`"sequence":4,"batch":4,"collection":"volumes","key":"w","record": null}`), "null", 5},
		"an edited record that is nil": {lines[0] + strings.Replace(lines[1], `"record":`, `"record": null`, 1)[:strings.Index(lines[1], `"record":`)] +
			`"record": null}` + "\n" + lines[2] + lines[3] + lines[4], "checksum", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			write(t, dir, test.text)

			if test.reason != "" {
				requireDamage(t, dir, test.line, test.reason)

				return
			}

			require.NoError(t, open(t, dir, state.Options{}).Close())
		})
	}
}

// TestOnlyWhatACrashLeavesMayFollowTheLastLine of the journal, and nothing else: up to the end
// of the preallocation, newlines were durable before the line was written.
func TestOnlyWhatACrashLeavesMayFollowTheLastLine(t *testing.T) {
	t.Parallel()

	text := unclean(t, example(t))
	whole := filled(text)
	zeroAt := func(at int) string { return whole[:at] + "\x00" + whole[at+1:] }

	for name, test := range map[string]struct {
		content string
		reason  string // "" is no damage
	}{
		"newlines":                       {whole, ""},
		"a zero behind the last line":    {zeroAt(len(text)), "is zero"},
		"a zero among the newlines":      {zeroAt(len(text) + 1), "is zero"},
		"a zero in the last newline":     {zeroAt(len(whole) - 1), "is zero"},
		"a zero behind the newlines":     {whole + "\x00", ""},
		"one newline less":               {whole[:len(whole)-1], "were durable"},
		"a checksum without a line":      {text + filled(`{"crc32c":"00000000",`)[:len(whole)-len(text)], ""},
		"the beginning of a line":        {text + filled(`{"crc32c":"0`)[:len(whole)-len(text)], ""},
		"the end of a line":              {text + filled(`"bytes":4}}`)[:len(whole)-len(text)], ""},
		"the end of a line, and a zero":  {text + filled("\"bytes\":4}}\x00")[:len(whole)-len(text)], "is zero"},
		"another object than the line's": {text + filled(`{"crc32c":"00000000","closed":6}`)[:len(whole)-len(text)], "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, journalFile), []byte(test.content), 0o600))

			f := newFixture(dir, state.Options{})

			err := f.Open(t.Context())
			if test.reason != "" {
				require.ErrorAs(t, err, new(*state.DamageError))
				errtext.Require(t, err, test.reason)
				require.Equal(t, test.content, read(t, dir, journalFile), "want: a refused start changes nothing")

				return
			}

			require.NoError(t, err)
			require.Equal(t, []string{"v0", "v1", "v2", "v3", "v4", "v5"}, keys(f))
			require.NoError(t, f.put("w", &volume{}))
			require.NoError(t, f.Close())
			require.Len(t, keys(open(t, dir, state.Options{})), 7, "want: nothing of the old end is taken for a change")
		})
	}
}

// TestLineAtTheEndOfAPreallocation: a line that ends at it, or a byte before or behind it, is
// followed by durable newlines in any case.
func TestLineAtTheEndOfAPreallocation(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := newMachine(1)
	f := open(t, dir, state.Options{FS: m, CompactAbove: -1})
	require.NoError(t, f.put("v", &volume{Note: "n"}))

	shortest := sizeOf(m, dir)
	require.NoError(t, f.Close())

	for ending := -1; ending <= 1; ending++ {
		dir := t.TempDir()
		m := newMachine(1)
		f := newFixture(dir, state.Options{FS: m, CompactAbove: -1})
		require.NoError(t, f.Open(t.Context()))
		require.NoError(t, f.put("v", &volume{Note: strings.Repeat("n", chunk+ending-shortest+1)}))
		require.Equal(t, chunk+ending, sizeOf(m, dir), "want: the line ends there")

		m.crashed = true
		_ = f.Close() // for its goroutines

		for _, next := range []*machine{m.afterKill(), m.afterPowerCut()} {
			again := newFixture(dir, state.Options{FS: next, CompactAbove: -1})
			require.NoError(t, again.Open(t.Context()), "line that ends %d bytes behind the preallocation", ending)
			require.Equal(t, []string{"v"}, keys(again))
			require.NoError(t, again.Close())
		}
	}
}

// TestRegisterRefusesDefects of a program.
func TestRegisterRefusesDefects(t *testing.T) {
	t.Parallel()

	s := state.New(t.TempDir(), state.Options{})
	state.Register[int](s, "a")
	require.PanicsWithValue(t, "state: collection a is registered twice or has no name", func() { state.Register[int](s, "a") })
	require.PanicsWithValue(t, "state: collection  is registered twice or has no name", func() { state.Register[int](s, "") })
	state.Register[int](s, "b")
	require.NoError(t, s.Open(t.Context()))
	require.PanicsWithValue(t, "state: collection c is registered after Open", func() { state.Register[int](s, "c") })
	require.NoError(t, s.Close())
}

// TestOptionsOfACollection: several indexes are independent, and records are prepared as they are read.
func TestOptionsOfACollection(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	prepared := map[string]int64{}
	build := func() (*state.Store, *state.Collection[*volume]) {
		s := state.New(dir, state.Options{})

		return s, state.Register(s, "volumes",
			state.WithIndex("name", func(v *volume) string { return v.Name }),
			state.WithIndex("note", func(v *volume) string { return v.Note }),
			state.WithPrepare(func(key string, v *volume) { prepared[key] = v.Bytes }))
	}

	s, volumes := build()
	require.NoError(t, s.Open(t.Context()))

	put := func(key string, v *volume) error {
		return s.Update(t.Context(), func(tx *state.Tx) error { return volumes.In(tx).Put(key, v) })
	}
	require.NoError(t, put("a", &volume{Name: "one", Note: "two", Bytes: 3}))
	require.NoError(t, put("b", &volume{Name: "two"}), "the value of one index is free in another")
	require.ErrorIs(t, put("c", &volume{Name: "three", Note: "two"}), state.ErrDuplicate)
	require.NoError(t, put("a", &volume{Name: "one", Note: "four", Bytes: 4}), "a record keeps its own values")
	require.NoError(t, put("c", &volume{Note: "two"}), "a value that was changed is free")
	require.Empty(t, prepared, "want: only what is read is prepared")

	found := func(index, value string) string {
		key, _, ok := volumes.Lookup(index, value)
		require.Equal(t, key != "", ok, "Lookup reports whether there is a record")

		return key
	}
	require.Equal(t, []string{"a", "b", "c", "a", "", "", "", ""}, []string{
		found("name", "one"), found("name", "two"), found("note", "two"), found("note", "four"),
		found("name", "four"), found("note", "one"), found("name", ""), found("other", "one"),
	})
	require.NoError(t, s.Close())

	s, volumes = build()
	require.NoError(t, s.Open(t.Context()))
	require.Equal(t, map[string]int64{"a": 4, "b": 0, "c": 0}, prepared)
	require.Equal(t, "c", found("note", "two"))
	require.NoError(t, s.Close())
}

// TestInvalidTransactionsFail: a transaction is of one store, and ends with its first failure.
func TestInvalidTransactionsFail(t *testing.T) {
	t.Parallel()

	f, other := open(t, t.TempDir(), state.Options{}), open(t, t.TempDir(), state.Options{})
	require.ErrorIs(t, f.Update(t.Context(), func(tx *state.Tx) error {
		_ = other.volumes.In(tx).Put("a", &volume{})

		return nil
	}), state.ErrTransactionOver)
	require.ErrorIs(t, f.Update(t.Context(), func(tx *state.Tx) error {
		err := f.volumes.In(tx).Put("", &volume{})
		require.ErrorIs(t, f.volumes.In(tx).Put("a", &volume{}), state.ErrRecord, "want: a transaction that has failed takes no more")
		require.ErrorIs(t, f.volumes.In(tx).Delete("a"), state.ErrRecord, "want: a transaction that has failed takes no more")

		return err
	}), state.ErrRecord)
	require.Empty(t, keys(f), "want: nothing is stored")
	require.Empty(t, keys(other), "want: nothing is stored")

	s := state.New(t.TempDir(), state.Options{})
	odd := state.Register[any](s, "odd")
	require.NoError(t, s.Open(t.Context()))
	require.ErrorIs(t, s.Update(t.Context(), func(tx *state.Tx) error { return odd.In(tx).Put("a", make(chan int)) }), state.ErrRecord,
		"want: a value that has no form in JSON is refused")
	require.NoError(t, s.Close())
}

// TestSequenceNumbersTheChanges: that of a transaction is the next one, whatever was aborted.
func TestSequenceNumbersTheChanges(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{})

	for _, want := range []uint64{1, 3, 5} {
		require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
			require.Equal(t, want, tx.Sequence())

			return errors.Join(f.counts.In(tx).Put("a", int(want)), f.counts.In(tx).Put("b", int(want)))
		}))
		require.ErrorIs(t, f.Update(t.Context(), func(tx *state.Tx) error {
			return errors.Join(f.counts.In(tx).Put("c", 1), errRefused)
		}), errRefused)
	}

	require.NoError(t, f.Close())

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.EqualValues(t, 6, report.Sequence, "want: the report has the last sequence number")
}

// TestDirectoryWithoutState is clean, and says so; one whose journal is gone is not.
func TestDirectoryWithoutState(t *testing.T) {
	t.Parallel()

	report, err := newFixture(t.TempDir(), state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: an empty directory is clean")
	require.Len(t, report.Notes, 1, "want: the only note is that there is no state")
	require.Contains(t, report.Notes[0].Reason, "no state")

	dir := example(t)
	require.NoError(t, os.Remove(filepath.Join(dir, journalFile)))

	report, err = newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.Len(t, report.Findings, 1, "want: the missing journal is damage")
	require.Empty(t, report.Notes, "want: what is damage is no note")
}

// TestAReaderCanVerify: it is a user who must not write the journal.
func TestAReaderCanVerify(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := killed(t, dir)
	denied := 0
	m.fail = func(step string) error {
		if step == "open "+journalFile {
			denied++
			if denied == 2 { // behind the question whether it exists
				return syscall.EACCES
			}
		}

		return nil
	}

	report, err := newFixture(dir, state.Options{FS: m}).Verify(nil)
	require.NoError(t, err)
	require.Equal(t, 3, denied, "want: the journal is opened again, only to be read")
	require.Equal(t, 4, report.Records["volumes"], "want: the records are read")
}

// TestReadsAfterSpaceIsBack: without a lazy change nothing is written when there is space again, and a
// transaction that only reads succeeds.
func TestReadsAfterSpaceIsBack(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, RetrySpace: time.Millisecond})
	failures := 1
	m.fail = func(step string) error {
		if step == "write "+journalFile && failures > 0 {
			failures--

			return syscall.ENOSPC
		}

		return nil
	}

	require.ErrorIs(t, f.put("a", &volume{}), syscall.ENOSPC)
	require.Eventually(t, func() bool { return f.Err() == nil }, waitLimit, time.Millisecond, "the store accepts changes again")
	require.NoError(t, f.Update(t.Context(), func(*state.Tx) error { return nil }))
	require.NoError(t, f.Close())
}

// TestAFailedChangeIsDurablyUndone before the preallocated part is filled again, which may fail for want of space.
func TestAFailedChangeIsDurablyUndone(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, RetrySpace: time.Millisecond})

	var steps []string

	m.fail = func(step string) error {
		if !strings.HasSuffix(step, " "+journalFile) {
			return nil
		}

		// The write of the change, and after its undoing that of the preallocated part.
		steps = append(steps, step)
		if len(steps) == 1 || len(steps) == 7 {
			return syscall.ENOSPC
		}

		return nil
	}

	require.ErrorIs(t, f.put("a", &volume{}), syscall.ENOSPC)
	require.Eventually(t, func() bool { return f.Err() == nil }, waitLimit, time.Millisecond, "the store accepts changes again")
	require.NoError(t, f.Close())

	write, truncate, sync := "write "+journalFile, "truncate "+journalFile, "sync "+journalFile
	require.Equal(t, []string{write, write, truncate, write, truncate, sync, write, write, truncate, sync, write, sync}, steps[:12])
}

// TestCloseEndsTheWaitForSpace: the store checks for space all the time.
func TestCloseEndsTheWaitForSpace(t *testing.T) {
	t.Parallel()

	for range 20 {
		m := newMachine(1)
		f := open(t, t.TempDir(), state.Options{FS: m, RetrySpace: 1})
		m.fail = func(step string) error {
			if step == "write "+journalFile {
				return syscall.ENOSPC
			}

			return nil
		}

		require.ErrorIs(t, f.put("a", &volume{}), syscall.ENOSPC)
		require.NoError(t, f.Close())
	}
}

// TestUnopenableLockFailsEachUse of the directory with its cause.
func TestUnopenableLockFailsEachUse(t *testing.T) {
	t.Parallel()

	dir := example(t)
	lock := filepath.Join(dir, "lock")
	require.NoError(t, os.Remove(lock))
	require.NoError(t, os.Symlink("lock", lock))

	_, err := newFixture(dir, state.Options{}).Verify(nil)
	require.ErrorIs(t, err, syscall.ELOOP)

	_, err = newFixture(dir, state.Options{}).Repair()
	require.ErrorIs(t, err, syscall.ELOOP)
	require.ErrorIs(t, newFixture(dir, state.Options{}).Open(t.Context()), syscall.ELOOP)
}

// TestRepairWithoutABackup changes nothing: the journal as it was must be kept first.
func TestRepairWithoutABackup(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := killed(t, dir)
	edit(t, m, dir)
	require.NoError(t, os.Remove(filepath.Join(dir, journalFile))) // which Repair copies

	before := string(m.names[filepath.Join(dir, journalFile)].now)
	done, err := newFixture(dir, state.Options{FS: m}).Repair()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Empty(t, done.Backups, "want: there is no backup")
	require.Equal(t, before, string(m.names[filepath.Join(dir, journalFile)].now))
}
