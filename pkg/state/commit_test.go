package state_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

var errRefused = errors.New("refused")

func TestAbort(t *testing.T) {
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
	})

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Update(canceled, func(*state.Tx) error { panic("must not run") }), context.Canceled)

	require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
		key, v, ok := f.volumes.In(tx).Lookup("name", "one")
		require.True(t, ok, "want: the record is there")
		require.Equal(t, "a", key)
		require.EqualValues(t, 5, v.Bytes)
		require.Equal(t, 1, f.volumes.In(tx).Len())
		require.Zero(t, f.counts.In(tx).Len())

		return nil
	}))
	require.Equal(t, before, f.all())
	require.EqualValues(t, 5, *f.sum)
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
				_ = f.volumes.In(tx).Put(test.key, test.value)
				_ = f.volumes.In(tx).Put("other", &volume{})

				return nil
			})
			require.ErrorIs(t, err, test.want)
		})
	}

	t.Cleanup(func() { require.Equal(t, []string{"a"}, keys(f)) })
}

func TestOddKeys(t *testing.T) {
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

	report, err := state.Verify(dir)
	require.NoError(t, err)
	require.True(t, report.Clean(), "want: the state is reported clean")
	require.Equal(t, map[string]int{"volumes": len(odd), "counts": 0}, report.Records)
}

func TestTransactionOver(t *testing.T) {
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

// gate holds up syncs of the journal.
type gate struct {
	entered chan struct{}
	leave   chan error
}

func newGate(t *testing.T, m *machine) gate {
	t.Helper()

	g := gate{entered: make(chan struct{}), leave: make(chan error)}
	m.fail = func(step string) error {
		if step != "sync "+journalFile {
			return nil
		}

		// The machine's own lock would keep readers of files away, who are none
		// here: reads of records need no file.
		select {
		case g.entered <- struct{}{}:
		case <-t.Context().Done():
			// The test is over; what it holds up must end.
			return nil
		}

		select {
		case err := <-g.leave:
			return err
		case <-t.Context().Done():
			return nil
		}
	}

	return g
}

// TestGroupCommit lets many Updates arrive while one sync is under way: all of
// them share the next one, none is acknowledged or seen before, and writers see
// each other's changes.
func TestGroupCommit(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, CompactAbove: -1})
	require.NoError(t, f.put("first", &volume{}))

	before := m.syncs
	g := newGate(t, m)
	done := make(chan error, 17)

	go func() { done <- f.put("leader", &volume{}) }()

	await(t, "the leader's sync of the journal", g.entered)

	var accepted sync.WaitGroup

	for i := range 16 {
		accepted.Add(1)

		go func() {
			done <- f.Update(context.Background(), func(tx *state.Tx) error {
				defer accepted.Done()

				_, ok := f.volumes.In(tx).Get("leader")
				if !ok {
					return errRefused
				}

				return f.volumes.In(tx).Put(fmt.Sprint("follower", i), &volume{})
			})
		}()
	}

	all := make(chan struct{})

	go func() {
		defer close(all)
		accepted.Wait()
	}()

	await(t, "all followers' changes to be accepted while the leader's sync is under way", all)
	require.Empty(t, done)
	require.Equal(t, []string{"first"}, keys(f), "readers must not see what is not durable")

	g.leave <- nil

	require.NoError(t, await(t, "the leader's Update to return after its sync", done))
	await(t, "the followers' sync of the journal", g.entered)

	require.Empty(t, done)
	require.Equal(t, []string{"first", "leader"}, keys(f))

	g.leave <- nil

	for range 16 {
		require.NoError(t, await(t, "each follower's Update to return after their sync", done))
	}

	require.Equal(t, 18, f.volumes.Len())
	require.Equal(t, before+2, m.syncs)
}

// TestSeenIsDurable has a transaction find what is not durable yet: it must not
// be acknowledged before that is.
func TestSeenIsDurable(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, CompactAbove: -1})
	g := newGate(t, m)
	writer, reader := make(chan error, 1), make(chan error, 1)

	go func() { writer <- f.put("a", &volume{}) }()

	await(t, "the writer's sync of the journal", g.entered)

	found := make(chan bool, 1)

	go func() {
		reader <- f.Update(context.Background(), func(tx *state.Tx) error {
			_, ok := f.volumes.In(tx).Get("a")
			found <- ok

			return nil
		})
	}()

	require.True(t, await(t, "the reader's transaction to run", found), "a transaction sees a change that is not durable yet")
	require.Empty(t, reader)

	g.leave <- syscall.EIO

	require.ErrorIs(t, await(t, "the writer's Update to fail with its sync", writer), state.ErrReadOnly)
	require.ErrorIs(t, await(t, "the reader's Update to fail with the writer's sync", reader), state.ErrReadOnly)
}

func TestFailsClosed(t *testing.T) {
	t.Parallel()

	for name, step := range map[string]string{"write": "write " + journalFile, "fsync": "sync " + journalFile} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			t.Run(name+" "+cause.Error(), func(t *testing.T) {
				t.Parallel()

				m := newMachine(1)
				dir := t.TempDir()
				f := open(t, dir, state.Options{FS: m, LazyFlush: 1 << 40, RetrySpace: time.Hour})
				require.NoError(t, f.put("a", &volume{Name: "one", Bytes: 5}))
				require.NoError(t, f.Err())
				require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error {
					return f.volumes.In(tx).Put("lazy", &volume{Bytes: 500})
				}))

				failures := 1
				m.fail = func(now string) error {
					if now == step && failures > 0 {
						failures--

						return cause
					}

					return nil
				}

				err := f.put("b", &volume{Name: "two", Bytes: 50})
				require.ErrorIs(t, err, state.ErrReadOnly)
				require.ErrorIs(t, err, cause)
				require.ErrorIs(t, f.Err(), cause)

				// The disk is well again, but must not be believed.
				require.ErrorIs(t, f.put("c", &volume{}), state.ErrReadOnly)
				require.ErrorIs(t, f.remove("a"), state.ErrReadOnly)
				require.ErrorIs(t, f.UpdateLazily(func(*state.Tx) error { panic("must not run") }), state.ErrReadOnly)
				require.ErrorIs(t, f.Compact(t.Context()), state.ErrReadOnly)

				require.Equal(t, map[string]volume{"a": {Name: "one", Bytes: 5}}, f.all())
				require.EqualValues(t, 5, *f.sum)

				_, _, taken := f.volumes.Lookup("name", "two")
				require.False(t, taken, "want: no volume has the name")
				require.NoError(t, f.Close())

				f = open(t, dir, state.Options{FS: m})
				require.Equal(t, []string{"a"}, keys(f))
			})
		}
	}
}

// TestCompactionFailure fails each step of a compaction: before the journal's
// name changes hands and after, the store must stay whole.
func TestCompactionFailure(t *testing.T) {
	t.Parallel()

	tests := map[string]bool{ // step: stays writable
		"create journal.jsonl.new": true,
		"write journal.jsonl.new":  true,
		"sync journal.jsonl.new":   true,
		"rename journal.jsonl":     false,
		"rename journal.jsonl.new": false,
		"sync directory":           false,
		"create state.json.new":    true,
		"write state.json.new":     true,
		"sync state.json.new":      true,
		"rename state.json.new":    true,
		"remove " + previousFile:   true,
	}

	for step, writable := range tests {
		t.Run(step, func(t *testing.T) {
			t.Parallel()

			m := newMachine(1)
			dir := t.TempDir()
			f := open(t, dir, state.Options{FS: m})
			require.NoError(t, f.put("a", &volume{}))

			failures := 0
			m.fail = func(now string) error {
				if now == step && failures == 0 {
					failures++

					return syscall.EIO
				}

				return nil
			}

			require.ErrorIs(t, f.Compact(t.Context()), syscall.EIO)
			require.Equal(t, 1, failures)

			want := []string{"a"}

			if writable {
				require.NoError(t, f.Err())
				require.NoError(t, f.put("b", &volume{}))

				want = append(want, "b")
			} else {
				require.ErrorIs(t, f.put("b", &volume{}), state.ErrReadOnly)
			}

			require.NoError(t, f.Close())

			for range 2 {
				f = open(t, dir, state.Options{FS: m})
				require.Equal(t, want, keys(f))
				require.NoError(t, f.Compact(t.Context()))
				require.NoError(t, f.Close())
			}
		})
	}
}

func TestLazy(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{LazyFlush: 1})
	seen := make(chan struct{})

	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.counts.In(tx).Put("n", 1) }))

	go func() {
		defer close(seen)

		for f.counts.Len() == 0 && t.Context().Err() == nil {
		}
	}()

	await(t, "a lazy change to become visible", seen)
	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.counts.In(tx).Put("n", 2) }))
	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{})
	n, _ := f.counts.Get("n")
	require.Equal(t, 2, n)
}

func TestAscend(t *testing.T) {
	t.Parallel()

	f := open(t, t.TempDir(), state.Options{})

	for _, key := range []string{"c", "a", "d", "b"} {
		require.NoError(t, f.put(key, &volume{}))
	}

	after := func(key string, limit int) (found []string) {
		f.volumes.Ascend(key, func(key string, _ *volume) bool {
			found = append(found, key)

			return len(found) < limit
		})

		return found
	}

	require.Equal(t, []string{"a", "b", "c", "d"}, after("", 9))
	require.Equal(t, []string{"a", "b"}, after("", 2))
	require.Equal(t, []string{"c", "d"}, after("b", 9))
	require.Equal(t, []string{"c", "d"}, after("bb", 9))
	require.Empty(t, after("d", 9))

	// A walk is over one version, whatever happens meanwhile.
	var walked []string

	f.volumes.Ascend("", func(key string, _ *volume) bool {
		require.NoError(t, f.remove("c"))

		walked = append(walked, key)

		return true
	})
	require.Equal(t, []string{"a", "b", "c", "d"}, walked)
	require.Equal(t, []string{"a", "b", "d"}, keys(f))
}

// TestConcurrent is for the race detector: writers, readers and compactions.
func TestConcurrent(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	f := open(t, dir, state.Options{CompactAbove: 20_000})

	var group sync.WaitGroup

	for writer := range 8 {
		group.Go(func() {
			for i := range 60 {
				key := fmt.Sprint("v", writer, "-", i%10)

				err := f.put(key, &volume{Name: key, Bytes: int64(i)})
				if err == nil && i%5 == 4 {
					err = f.remove(key)
				}

				if err != nil {
					t.Error(err)
				}

				_, there := f.volumes.Get(key)
				if there == (i%5 == 4) {
					t.Errorf("%s is there: %v", key, there)
				}
			}
		})
	}

	group.Go(func() {
		for range 200 {
			f.volumes.Ascend("v3", func(string, *volume) bool { return true })
			f.volumes.Lookup("name", "v3-3")
			_ = f.Err()
		}
	})

	ended := make(chan struct{})

	go func() {
		defer close(ended)
		group.Wait()
	}()

	await(t, "all writers and readers to end", ended)

	before := f.all()
	sum := *f.sum

	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{})
	require.Equal(t, before, f.all())
	require.Equal(t, sum, *f.sum)
}
