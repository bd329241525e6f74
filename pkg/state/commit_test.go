package state_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
)

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

// TestConcurrentUpdatesShareASync lets many Updates arrive while one sync is under way: all of
// them share the next one, none is acknowledged or seen before, and writers see
// each other's changes.
func TestConcurrentUpdatesShareASync(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, CompactAbove: -1})
	require.NoError(t, f.put("first", &volume{}))

	before := m.syncs
	g := newGate(t, m)
	done := make(chan error, 17)

	go func() { done <- f.put("leader", &volume{}) }()

	await.Receive(t, g.entered, "the leader's sync of the journal")

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

	await.Receive(t, all, "all followers' changes to be accepted while the leader's sync is under way")
	require.Empty(t, done, "want: the leader waits for its sync")
	require.Equal(t, []string{"first"}, keys(f), "readers must not see what is not durable")

	g.leave <- nil

	require.NoError(t, await.Receive(t, done, "the leader's Update to return after its sync"))
	await.Receive(t, g.entered, "the followers' sync of the journal")

	require.Empty(t, done, "want: the followers wait for their sync")
	require.Equal(t, []string{"first", "leader"}, keys(f))

	g.leave <- nil

	for range 16 {
		require.NoError(t, await.Receive(t, done, "each follower's Update to return after their sync"))
	}

	require.Equal(t, 18, f.volumes.Len(), "want: all changes are made")
	require.Equal(t, before+2, m.syncs, "want: one sync is for all followers")
}

// TestReadChangesAreDurable: a transaction that reads what is not durable yet must not be
// acknowledged before that is.
func TestReadChangesAreDurable(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	f := open(t, t.TempDir(), state.Options{FS: m, CompactAbove: -1})
	g := newGate(t, m)
	writer, reader := make(chan error, 1), make(chan error, 1)

	go func() { writer <- f.put("a", &volume{}) }()

	await.Receive(t, g.entered, "the writer's sync of the journal")

	found := make(chan bool, 1)

	go func() {
		reader <- f.Update(context.Background(), func(tx *state.Tx) error {
			_, ok := f.volumes.In(tx).Get("a")
			found <- ok

			return nil
		})
	}()

	require.True(t, await.Receive(t, found, "the reader's transaction to run"), "a transaction sees a change that is not durable yet")
	require.Empty(t, reader, "want: a transaction waits for the sync of what it has read")

	g.leave <- syscall.EIO

	require.ErrorIs(t, await.Receive(t, writer, "the writer's Update to fail with its sync"), state.ErrReadOnly)
	require.ErrorIs(t, await.Receive(t, reader, "the reader's Update to fail with the writer's sync"), state.ErrReadOnly)
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

				// The disk works again, but the store must not trust it.
				require.ErrorIs(t, f.put("c", &volume{}), state.ErrReadOnly)
				require.ErrorIs(t, f.remove("a"), state.ErrReadOnly)

				require.ErrorIs(t, f.UpdateLazily(func(*state.Tx) error { panic("must not run") }), state.ErrReadOnly)
				require.ErrorIs(t, f.Compact(t.Context()), state.ErrReadOnly)

				require.Equal(t, map[string]volume{"a": {Name: "one", Bytes: 5}}, f.all())

				if step == "write "+journalFile && errors.Is(cause, syscall.ENOSPC) {
					require.EqualValues(t, 505, *f.sum, "the lazy change is kept")
				} else {
					require.EqualValues(t, 5, *f.sum, "want: the index is the one before the failure")
				}

				_, _, taken := f.volumes.Lookup("name", "two")
				require.False(t, taken, "want: no volume has the name")
				require.NoError(t, f.Close())

				f = open(t, dir, state.Options{FS: m})
				require.Equal(t, []string{"a"}, keys(f))
			})
		}
	}
}

// TestFailedCompactionKeepsTheStore fails each step of a compaction: before the new journal gets
// the name and after, the store must stay whole.
func TestFailedCompactionKeepsTheStore(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		step     string
		cause    error
		writable bool
	}{
		{"create " + draftFile, syscall.EIO, true},
		{"write " + draftFile, syscall.EIO, true},
		{"sync " + draftFile, syscall.EIO, true},
		{"rename " + draftFile, syscall.EIO, false},
		{"rename " + draftFile, syscall.ENOSPC, true},
		{"rename " + draftFile, syscall.EDQUOT, true},
		{"sync directory", syscall.EIO, false},
		{"sync directory", syscall.ENOSPC, false},
	} {
		t.Run(test.step+" "+test.cause.Error(), func(t *testing.T) {
			t.Parallel()

			m := newMachine(1)
			dir := t.TempDir()
			f := open(t, dir, state.Options{FS: m})
			require.NoError(t, f.put("a", &volume{}))

			failures := 0
			m.fail = func(now string) error {
				if now == test.step && failures == 0 {
					failures++

					return test.cause
				}

				return nil
			}

			require.ErrorIs(t, f.Compact(t.Context()), test.cause)
			require.Equal(t, 1, failures, "want: the failed compaction is reported once")

			want := []string{"a"}

			if test.writable {
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

// TestConcurrentUse is for the race detector: writers, readers and compactions.
func TestConcurrentUse(t *testing.T) {
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
			for range f.volumes.Ascend("v3") {
			}

			f.volumes.Lookup("name", "v3-3")
			_ = f.Err()
		}
	})

	ended := make(chan struct{})

	go func() {
		defer close(ended)
		group.Wait()
	}()

	await.Receive(t, ended, "all writers and readers to end")

	before := f.all()
	sum := *f.sum

	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{})
	require.Equal(t, before, f.all())
	require.Equal(t, sum, *f.sum, "want: the index is the one before the restart")
}
