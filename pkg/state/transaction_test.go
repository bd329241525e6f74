package state_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
)

var errRefused = errors.New("refused")

func TestAbortKeepsTheRecords(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})
	require.NoError(t, f.put("a", &volume{Name: "one", Bytes: 5}))

	before := f.all()

	change := func(tx *state.Tx) {
		require.NoError(t, f.volumes.In(tx).Delete("a"))
		require.NoError(t, f.volumes.In(tx).Put("b", &volume{Name: "one", Bytes: 50}))
		require.NoError(t, f.counts.In(tx).Put("n", 1))
	}

	err := f.Update(t.Context(), func(tx *state.Tx) error {
		change(tx)

		return errRefused
	})
	require.ErrorIs(t, err, errRefused)

	require.Panics(t, func() {
		_ = f.Update(t.Context(), func(tx *state.Tx) error {
			change(tx)
			panic("on purpose")
		})
	}, "want: the panic goes on")

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Update(canceled, func(*state.Tx) error { panic("must not run") }), context.Canceled)

	require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
		key, v, ok := f.volumes.In(tx).Lookup("name", "one")
		require.True(t, ok, "want: the record is there")
		require.Equal(t, "a", key)
		require.EqualValues(t, 5, v.Bytes, "want: the record has its value")
		require.Equal(t, 1, f.volumes.In(tx).Len(), "want: the transaction sees one record")
		require.Zero(t, f.counts.In(tx).Len(), "want: the transaction sees no counter")

		return nil
	}))
	require.Equal(t, before, f.all())
	require.EqualValues(t, 5, *f.sum, "want: the aborted transaction changes no index")
}

func TestRefusedRecords(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})
	require.NoError(t, f.put("a", &volume{Name: "one"}))

	tests := map[string]struct {
		key   string
		value *volume
		want  error
	}{
		"name of another": {"b", &volume{Name: "one"}, state.ErrDuplicate},
		"empty key":       {"", &volume{}, state.ErrRecord},
		"not UTF-8":       {"\xff", &volume{}, state.ErrRecord},
		"nil":             {"c", nil, state.ErrRecord},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, f.put(test.key, test.value), test.want)

			// Who overlooks the error of Put still gets it.
			err := f.Update(t.Context(), func(tx *state.Tx) error {
				require.ErrorIs(t, f.volumes.In(tx).Put(test.key, test.value), test.want)

				_ = f.volumes.In(tx).Put("other", &volume{})

				return nil
			})
			require.ErrorIs(t, err, test.want)
		})
	}

	t.Cleanup(func() { require.Equal(t, []string{"a"}, keys(f)) })
}

func TestUnusualKeysAreKept(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{})
	odd := []string{`"`, `\`, "a\nb", "ü", "\u2028", "<&>", " ", `": {"crc32c":"`, "\x00", strings.Repeat("k", 300_000)}

	for i, key := range odd {
		require.NoError(t, f.put(key, &volume{Name: key, Note: key, Bytes: int64(i)}))
	}

	before := f.all()

	for range 2 {
		require.NoError(t, f.Close())

		f = open(t, dir, state.Options{})
		require.Equal(t, before, f.all())
		require.NoError(t, f.Compact(t.Context()))
	}

	require.NoError(t, f.Close())

	report, err := newFixture(dir, state.Options{}).Verify(nil)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Equal(t, map[string]int{"volumes": len(odd), "counts": 0}, report.Records)
}

func TestEndedTransactionIsUnusable(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})

	var kept state.View[*volume]

	require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
		kept = f.volumes.In(tx)

		return nil
	}))
	require.ErrorIs(t, kept.Put("a", &volume{}), state.ErrTransactionOver)
	require.ErrorIs(t, kept.Delete("a"), state.ErrTransactionOver)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.put("a", &volume{}), state.ErrNotOpen)
	require.ErrorIs(t, f.Compact(t.Context()), state.ErrNotOpen)
	require.ErrorIs(t, newFixture(t.TempDir(), state.Options{}).put("a", &volume{}), state.ErrNotOpen)
}

// TestLazyChangesAreWritten each after the one before it, and one at the end.
func TestLazyChangesAreWritten(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{LazyFlush: 1})

	for want := 1; want <= 3; want++ {
		require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.counts.In(tx).Put("n", want) }))

		seen := make(chan struct{})

		go func() {
			defer close(seen)

			for n, _ := f.counts.Get("n"); n != want && t.Context().Err() == nil; n, _ = f.counts.Get("n") {
			}
		}()

		await.Receive(t, seen, "a lazy change to become visible")
	}

	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.counts.In(tx).Put("n", 4) }))
	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{})
	n, _ := f.counts.Get("n")
	require.Equal(t, 4, n, "want: the lazy change is written by the next one")
}

// TestUnsyncedChangesAreWritten without a sync, and durable with the next Update, whether that changes
// anything or not.
func TestUnsyncedChangesAreWritten(t *testing.T) {
	t.Parallel()

	dir, m := t.TempDir(), newMachine(1)
	f := open(t, dir, state.Options{FS: m, LazyFlush: time.Hour})
	put := func(n int) func(*state.Tx) error {
		return func(tx *state.Tx) error { return f.counts.In(tx).Put("n", n) }
	}
	read := func(*state.Tx) error { return nil }
	require.NoError(t, f.Update(t.Context(), put(0)))

	for _, each := range []struct {
		name   string
		update func() error
		syncs  int
	}{
		{"an unsynced change", func() error { return f.UpdateUnsynced(t.Context(), put(1)) }, 0},
		{"another one", func() error { return f.UpdateUnsynced(t.Context(), put(2)) }, 0},
		{"an Update that changes nothing", func() error { return f.Update(t.Context(), read) }, 1},
		{"another one, of durable records", func() error { return f.Update(t.Context(), read) }, 0},
		{"an unsynced one that changes nothing", func() error { return f.UpdateUnsynced(t.Context(), read) }, 0},
		{"a lazy change", func() error { return f.UpdateLazily(put(3)) }, 0},
		{"an unsynced one that has seen it", func() error { return f.UpdateUnsynced(t.Context(), read) }, 0},
		{"an Update with a change", func() error { return f.Update(t.Context(), put(4)) }, 1},
	} {
		before := m.syncs
		require.NoError(t, each.update(), each.name)
		require.Equal(t, each.syncs, m.syncs-before, "want: the number of syncs of %s", each.name)
	}

	require.NoError(t, f.UpdateUnsynced(t.Context(), put(5)))
	n, _ := f.counts.Get("n")
	require.Equal(t, 5, n, "want: readers see an unsynced change")

	m.crashed = true
	_ = f.Close()

	f = open(t, dir, state.Options{FS: m.afterKill()})
	n, _ = f.counts.Get("n")
	require.Equal(t, 5, n, "want: a kill leaves an unsynced change")
}

func TestAscendIsInTheOrderOfKeys(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})

	for _, key := range []string{"c", "a", "d", "b"} {
		require.NoError(t, f.put(key, &volume{}))
	}

	after := func(key string, limit int) (found []string) {
		for key := range f.volumes.Ascend(key) {
			found = append(found, key)

			if len(found) == limit {
				break
			}
		}

		return found
	}

	require.Equal(t, []string{"a", "b", "c", "d"}, after("", 9))
	require.Equal(t, []string{"a", "b"}, after("", 2))
	require.Equal(t, []string{"c", "d"}, after("b", 9))
	require.Equal(t, []string{"c", "d"}, after("bb", 9))
	require.Empty(t, after("d", 9), "want: no key follows the last")

	// A walk is over one version, whatever happens meanwhile.
	var walked []string

	for key := range f.volumes.Ascend("") {
		require.NoError(t, f.remove("c"))

		walked = append(walked, key)
	}

	require.Equal(t, []string{"a", "b", "c", "d"}, walked)
	require.Equal(t, []string{"a", "b", "d"}, keys(f))
}

// TestAscendIndexIsInTheOrderOfValues, whose keys sort otherwise, and leaves out a record without a value.
func TestAscendIndexIsInTheOrderOfValues(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})

	for key, name := range map[string]string{"a": "three", "b": "one", "c": "two", "d": "four", "e": ""} {
		require.NoError(t, f.put(key, &volume{Name: name, Note: key}))
	}

	// walk returns up to limit values with the keys of their records.
	walk := func(index, after string, limit int) (found []string) {
		for value, v := range f.volumes.AscendIndex(index, after) {
			require.Equal(t, value, v.Name, "want: a value comes with its record")

			found = append(found, value+" "+v.Note)

			if len(found) == limit {
				break
			}
		}

		return found
	}
	all := []string{"four d", "one b", "three a", "two c"}

	require.Equal(t, all, walk("name", "", 9))
	require.Equal(t, all[:2], walk("name", "", 2), "want: a break ends the walk")
	require.Equal(t, all[2:], walk("name", "one", 9), "want: after a value starts behind it")
	require.Equal(t, all[2:], walk("name", "onf", 9), "want: after need not be a value")
	require.Equal(t, all[2:3], walk("name", "one", 1))
	require.Empty(t, walk("name", "two", 9), "want: no value follows the last")
	require.Empty(t, walk("bytes", "", 9), "want: an index that does not exist has nothing")

	require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
		require.NoError(t, f.volumes.In(tx).Put("e", &volume{Name: "five", Note: "e"}))
		require.Equal(t, all, walk("name", "", 9), "want: a running transaction is not seen")

		return f.volumes.In(tx).Delete("e")
	}))

	// A walk is over one version, whatever happens meanwhile: a value is removed, one is added, and one is
	// replaced.
	var walked []string

	for value, v := range f.volumes.AscendIndex("name", "") {
		require.NoError(t, f.remove("a"))
		require.NoError(t, f.put("c", &volume{Name: "zero", Note: "c"}))
		require.NoError(t, f.put("f", &volume{Name: "six", Note: "f"}))

		walked = append(walked, value+" "+v.Note)
	}

	require.Equal(t, all, walked)
	require.Equal(t, []string{"four d", "one b", "six f", "zero c"}, walk("name", "", 9))
}
