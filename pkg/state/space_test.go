package state_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/logs"
)

const waitLimit = time.Minute

// TestAcceptsChangesWhenThereIsSpaceAgain: a write that found no space is no
// damage. What failed is taken back, also from observers. Lazy changes, which
// have succeeded, are kept.
func TestAcceptsChangesWhenThereIsSpaceAgain(t *testing.T) {
	t.Parallel()

	log, m := &logs.Buffer{}, newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{
		FS: m, LazyFlush: time.Hour, RetrySpace: time.Millisecond, CompactAbove: -1, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, f.put("a", &volume{Name: "one", Bytes: 5}))
	require.NoError(t, f.put("gone", &volume{}))

	want := map[string]volume{"a": {Name: "one", Bytes: 5}, "c": {Name: "two", Bytes: 7}, "lazy": {Bytes: 500}}

	var (
		full  atomic.Bool
		tries atomic.Int64
	)

	full.Store(true)

	m.fail = func(step string) error {
		if step != "write "+journalFile || !full.Load() {
			return nil
		}

		tries.Add(1)

		return syscall.ENOSPC
	}

	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.volumes.In(tx).Put("lazy", &volume{Bytes: 500}) }))
	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.volumes.In(tx).Delete("gone") }))
	require.ErrorIs(t, f.put("b", &volume{Name: "two", Bytes: 50, Note: strings.Repeat("n", 2*chunk)}), state.ErrReadOnly)
	require.ErrorIs(t, f.remove("a"), state.ErrReadOnly)
	require.ErrorIs(t, f.Err(), syscall.ENOSPC)
	errtext.Require(t, f.Err(), "free some")
	require.EqualValues(t, 505, *f.sum, "want: the index is the one before the failure")
	require.Eventually(t, func() bool { return tries.Load() > 5 }, waitLimit, time.Millisecond, "the store tries again")
	require.Equal(t, []string{"a", "gone"}, keys(f), "readers see what is durable")

	full.Store(false)
	require.Eventually(t, func() bool { return slices.Equal(keys(f), []string{"a", "lazy"}) }, waitLimit, time.Millisecond,
		"the lazy changes become durable without another change")

	require.NoError(t, f.put("c", &volume{Name: "two", Bytes: 7}), "the name that was taken back is free")
	require.Equal(t, want, f.all())
	require.EqualValues(t, 512, *f.sum, "want: the index has the later change")
	require.NotContains(t, log.String(), "is lost", "want: a lazy change that can be made again is")
	require.NoError(t, f.Close())

	// A compaction would write what the failed writes have left over.
	f = open(t, dir, state.Options{FS: m})
	require.Equal(t, want, f.all())
	require.NoError(t, f.Compact(t.Context()))
	require.NoError(t, f.put("d", &volume{}))
	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{FS: m})
	require.Equal(t, []string{"a", "c", "d", "lazy"}, keys(f))
}

// TestEndsWithoutSpace closes a store that has lazy changes and no space for them: they are lost, as
// in a crash, and Close does not wait for them.
func TestEndsWithoutSpace(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{FS: m, RetrySpace: time.Hour, LazyFlush: time.Hour})
	require.NoError(t, f.put("a", &volume{}))

	m.fail = func(step string) error {
		if step == "write "+journalFile {
			return syscall.ENOSPC
		}

		return nil
	}

	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.volumes.In(tx).Put("lazy", &volume{}) }))
	require.ErrorIs(t, f.put("b", &volume{Note: strings.Repeat("n", 2*chunk)}), state.ErrReadOnly)
	require.ErrorIs(t, f.put("c", &volume{}), state.ErrReadOnly)
	require.NoError(t, f.Close())

	m.fail = nil
	require.Equal(t, []string{"a"}, keys(open(t, dir, state.Options{FS: m})))
}

// TestEachStepFailsOnceWithoutSpace fails each step of a store that has run out of space and gets some
// again. After it the store accepts changes or is read-only until a restart, and the next one opens.
func TestEachStepFailsOnceWithoutSpace(t *testing.T) {
	t.Parallel()

	for number, more := 1, true; more; number++ {
		m := newMachine(uint64(number))
		dir := t.TempDir()
		f := open(t, dir, state.Options{FS: m, RetrySpace: time.Millisecond, CompactAbove: -1})
		require.NoError(t, f.put("a", &volume{Bytes: 5}))

		var (
			failing = &once{number: number, cause: syscall.EIO}
			full    = true
		)

		m.fail = func(step string) error {
			if full && step == "write "+journalFile {
				full = false

				return syscall.ENOSPC
			}

			if full {
				return nil
			}

			return failing.fail(step)
		}

		require.ErrorIs(t, f.put("b", &volume{Note: strings.Repeat("n", 2*chunk)}), syscall.ENOSPC)
		require.Eventually(t, func() bool {
			err := f.Err()

			return err == nil || strings.Contains(err.Error(), "restart")
		}, waitLimit, time.Millisecond, "the store accepts changes or is read-only until a restart")

		want := []string{"a"}
		if f.put("c", &volume{Note: "short"}) == nil {
			want = append(want, "c")
		}

		_ = f.Close()

		m.fail = nil
		more = len(failing.failed) > 0

		f = open(t, dir, state.Options{FS: m, CompactAbove: -1})
		require.Equal(t, want, keys(f), "%s", failing)
		require.NoError(t, f.Close())
	}
}

// TestFailedSyncAfterNoSpaceIsFinal: only a lack of space is waited for.
func TestFailedSyncAfterNoSpaceIsFinal(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{FS: m, RetrySpace: time.Millisecond})
	require.NoError(t, f.put("a", &volume{}))

	writes, syncs := 1, 1
	m.fail = func(step string) error {
		switch {
		case step == "write "+journalFile && writes > 0:
			writes--

			return syscall.ENOSPC
		case step == "sync "+journalFile && syncs > 0:
			syncs--

			return syscall.EIO
		default:
			return nil
		}
	}

	require.ErrorIs(t, f.put("b", &volume{}), syscall.ENOSPC)
	require.Eventually(t, func() bool { return strings.Contains(f.Err().Error(), "restart") }, waitLimit, time.Millisecond,
		"the failed sync is known")
	require.ErrorIs(t, f.put("c", &volume{}), syscall.EIO)
	require.NoError(t, f.Close())
	require.Equal(t, []string{"a"}, keys(open(t, dir, state.Options{FS: m})))
}

// TestLazyChangeOfAFailedOne: a lazy change that is possible only after one that has failed is lost with
// it, and the log says so. The store goes on without both.
func TestLazyChangeOfAFailedOne(t *testing.T) {
	t.Parallel()

	log, m := &logs.Buffer{}, newMachine(1)
	f := open(t, t.TempDir(), state.Options{
		FS: m, LazyFlush: time.Hour, RetrySpace: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, f.put("a", &volume{Name: "one", Bytes: 5}))

	entered, leave, failures := make(chan struct{}), make(chan struct{}), 1
	m.fail = func(step string) error {
		if step != "write "+journalFile || failures == 0 {
			return nil
		}

		failures--

		close(entered)
		<-leave

		return syscall.ENOSPC
	}

	results, accepted := make(chan error, 2), make(chan struct{})

	go func() { results <- f.put("first", &volume{}) }()

	await.Receive(t, entered, "the first write")

	go func() {
		results <- f.Update(context.Background(), func(tx *state.Tx) error {
			defer close(accepted)

			return f.volumes.In(tx).Delete("a")
		})
	}()

	await.Receive(t, accepted, "the deletion to be accepted")
	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error {
		return errors.Join(f.volumes.In(tx).Put("c", &volume{Bytes: 50}), f.volumes.In(tx).Put("b", &volume{Name: "one", Bytes: 500}))
	}))
	close(leave)

	for range 2 {
		require.ErrorIs(t, await.Receive(t, results, "the changes to fail"), syscall.ENOSPC)
	}

	require.Eventually(t, func() bool { return f.Err() == nil }, waitLimit, time.Millisecond, "the store accepts changes again")
	require.ErrorIs(t, f.put("b", &volume{Name: "one"}), state.ErrDuplicate)
	require.NoError(t, f.put("d", &volume{}))
	require.Equal(t, []string{"a", "d"}, keys(f))
	require.EqualValues(t, 5, *f.sum, "want: the index has no change that was lost")
	require.Contains(t, log.String(), "is lost with one that has failed")
}
