package removal_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/removal"
)

const limit = time.Minute

var errStuck = errors.New("it is stuck")

// logged is a log that may be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return strings.Count(l.text.String(), text)
}

func newQueue() (*removal.Queue, *logged) {
	log := &logged{}

	return removal.New(slog.New(slog.NewTextHandler(log, nil))), log
}

func run(t *testing.T, q *removal.Queue) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		q.Run(ctx)
	}()

	t.Cleanup(func() {
		cancel()

		select {
		case <-ended:
		case <-time.After(limit):
			t.Error("Run has not returned after its context ended")
		}
	})
}

func TestAFailedRemovalIsRetriedReportedAndLoggedOnce(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		q, log := newQueue()

		var changes, attempts atomic.Int32

		q.OnChange(func(pool string) {
			changes.Add(1)

			if pool != "p" {
				t.Errorf("changed pool is %q, want p", pool)
			}
		})

		task := removal.Task{Pool: "p", Object: "volume v", Remove: func(context.Context) error {
			if attempts.Add(1) < 4 {
				return errStuck
			}

			return nil
		}}

		require.ErrorIs(t, q.Do(t.Context(), task), errStuck)
		require.ErrorIs(t, q.Do(t.Context(), task), errStuck)

		failures := q.Failures("p")
		require.Len(t, failures, 1, "want: the removal that failed is reported")
		require.Equal(t, "volume v", failures[0].Object)
		require.ErrorIs(t, failures[0].Cause, errStuck)
		require.Empty(t, q.Failures("another"), "want: the other pool has no failure")
		require.Equal(t, 1, log.count("cannot remove"), "the cause has not changed")

		run(t, q)
		require.Eventually(t, func() bool { return q.Len() == 0 }, limit, time.Millisecond, "the queue retries until it succeeds")
		require.Empty(t, q.Failures("p"), "want: a removal that succeeded is not reported")
		require.EqualValues(t, 4, attempts.Load(), "want: the removal is tried until it succeeds")
		require.Eventually(t, func() bool { return changes.Load() == 2 }, limit, time.Millisecond, "it appears and clears")
	})
}

func TestHangingRemovalDelaysNoOtherPool(t *testing.T) {
	t.Parallel()

	q, _ := newQueue()
	hang, removed := make(chan struct{}), make(chan struct{})

	q.Add(removal.Task{Pool: "hung", Object: "a", Remove: func(context.Context) error {
		<-hang

		return nil
	}})
	run(t, q)
	t.Cleanup(func() { close(hang) })

	q.Add(removal.Task{Pool: "well", Object: "b", Remove: func(context.Context) error {
		close(removed)

		return nil
	}})

	awaited(t, "the other pool's removal", removed)

	// Only a queue that runs starts a task.
	started := q.Start(removal.Task{Pool: "hung", Object: "c", Remove: func(context.Context) error { return nil }})
	awaited(t, "a removal that is started now", started)
}

func awaited(t *testing.T, what string, event <-chan struct{}) {
	t.Helper()

	select {
	case <-event:
	case <-time.After(limit):
		require.Fail(t, "waited in vain for "+what)
	}
}

// TestTheNewestTaskOfAnObjectRuns replaces one that can't succeed any more, as that
// of a pool that was opened again.
func TestTheNewestTaskOfAnObjectRuns(t *testing.T) {
	t.Parallel()

	q, _ := newQueue()
	task := removal.Task{Pool: "p", Object: "v", Remove: func(context.Context) error { return errStuck }}
	require.ErrorIs(t, q.Do(t.Context(), task), errStuck)

	task.Remove = func(context.Context) error { return nil }
	require.NoError(t, q.Do(t.Context(), task))
	require.Zero(t, q.Len(), "want: no task is left")
}

func TestNothingRunsBeforeRun(t *testing.T) {
	t.Parallel()

	q, _ := newQueue()
	ran := make(chan struct{})

	require.Nil(t, q.Start(removal.Task{Pool: "p", Object: "v", Remove: func(context.Context) error {
		close(ran)

		return nil
	}}), "want: Start before Run returns no result")

	select {
	case <-ran:
		require.Fail(t, "a task ran before Run")
	default:
	}

	run(t, q)

	select {
	case <-ran:
	case <-time.After(limit):
		require.Fail(t, "waited in vain for a task that was scheduled before Run")
	}
}
