package removal_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/removal"
)

// begin runs a queue in the background. The function that it returns ends Run and returns how long that
// has taken.
func begin(t *testing.T, q *removal.Queue) (end func() time.Duration) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		q.Run(ctx)
	}()

	return func() time.Duration {
		cancelled := time.Now()

		cancel()
		<-ended

		return time.Since(cancelled)
	}
}

// task returns one whose attempts call remove.
func task(object string, remove func(context.Context) error) removal.Task {
	return removal.Task{Pool: "p", Object: object, Remove: remove}
}

func succeed(context.Context) error { return nil }

// TestAnInterruptedRemovalIsNoFailure interrupts an attempt: it is not reported, and is retried.
func TestAnInterruptedRemovalIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, log := newQueue()
		q.OnChange(func(string) { t.Error("an interrupted removal is no change of a failure") })

		ctx, cancel := context.WithCancel(t.Context())
		err := q.Do(ctx, task("v", func(ctx context.Context) error {
			cancel()

			return ctx.Err()
		}))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, q.Len(), "want: the removal is still to be done")
		require.Empty(t, q.Failures("p"), "want: an interruption is no failure")
		require.Zero(t, log.count("cannot remove"), "want: an interruption is not logged")

		// A success that the context's end does not change.
		require.NoError(t, q.Do(t.Context(), task("v", func(context.Context) error { cancel(); return nil })))
		require.Zero(t, q.Len(), "want: the removal is done")
	})
}

// TestAttemptsAtAnObjectFollowEachOther has a caller that does not wait for the running attempt any
// more.
func TestAttemptsAtAnObjectFollowEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue()
		proceed, first := make(chan struct{}), make(chan error, 1)

		go func() {
			first <- q.Do(t.Context(), task("v", func(context.Context) error {
				<-proceed

				return nil
			}))
		}()
		synctest.Wait()

		gone := errors.New("the caller has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		require.ErrorIs(t, q.Do(ctx, task("v", succeed)), gone)

		second := make(chan error, 1)

		go func() { second <- q.Do(t.Context(), task("v", func(context.Context) error { return errStuck })) }()
		synctest.Wait()
		require.Empty(t, second, "want: the second attempt waits for the first one")

		close(proceed)
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, errStuck)
		require.Len(t, q.Failures("p"), 1, "want: the last attempt decides")
	})
}

// TestFailuresAreLoggedWhenTheyChange orders the failures by their objects.
func TestFailuresAreLoggedWhenTheyChange(t *testing.T) {
	t.Parallel()

	q, log := newQueue()
	changes := 0
	q.OnChange(func(string) { changes++ })

	for i, step := range []struct {
		object        string
		cause         error
		logged, count int
	}{
		{object: "b", cause: errors.New("first"), logged: 1, count: 1},
		{object: "b", cause: errors.New("first"), logged: 1, count: 1},
		{object: "b", cause: errors.New("second"), logged: 2, count: 1},
		{object: "a", cause: errors.New("second"), logged: 3, count: 2},
		{object: "c", logged: 3, count: 2},
		{object: "e", cause: errors.New("first"), logged: 4, count: 3},
		{object: "d", cause: errors.New("first"), logged: 5, count: 4},
		{object: "f", cause: errors.New("first"), logged: 6, count: 5},
	} {
		require.Equal(t, step.cause, q.Do(t.Context(), task(step.object, func(context.Context) error { return step.cause })))
		require.Equal(t, step.logged, log.count("cannot remove"), "the failures that are logged after step %d", i)
		require.Equal(t, step.logged, changes, "the changes after step %d", i)
		require.Len(t, q.Failures("p"), step.count, "the failures after step %d", i)
	}

	var objects []string
	for _, each := range q.Failures("p") {
		objects = append(objects, each.Object)
	}

	require.Equal(t, []string{"a", "b", "d", "e", "f"}, objects, "want: failures are in the order of objects")
	require.Equal(t, 5, q.Len(), "want: what failed stays scheduled")
	require.NoError(t, q.Do(t.Context(), task("a", succeed)))
	require.Equal(t, 7, changes, "want: the end of a failure is a change")
	require.Equal(t, 1, log.count("removed after failures"), "want: the end of a failure is logged")
	require.Equal(t, 4, q.Len(), "want: the other removals are left")
}

// TestBackgroundTasksOfAPoolFollowEachOther runs none of them after Run's context has ended.
func TestBackgroundTasksOfAPoolFollowEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue()
		proceed := make(chan struct{})
		running, most, done := 0, 0, 0

		for i := range 3 {
			q.Add(task(strconv.Itoa(i), func(context.Context) error {
				running++
				most = max(most, running)
				<-proceed

				running--
				done++

				return nil
			}))
		}

		end := begin(t, q)

		synctest.Wait()

		proceed <- struct{}{}

		synctest.Wait()
		require.Equal(t, 1, done, "want: one task is done")
		require.Equal(t, 1, running, "want: the next task runs")

		go func() {
			time.Sleep(time.Second)
			close(proceed)
		}()

		require.Equal(t, time.Second, end(), "want: Run awaits the running task")
		require.Equal(t, 2, done, "want: no task begins after the end of Run's context")
		require.Equal(t, 1, most, "want: tasks of one pool follow each other")
		require.Equal(t, 1, q.Len(), "want: the last task is left")
		require.Nil(t, q.Start(task("late", succeed)), "want: a queue that has ended starts nothing")
		require.Equal(t, 2, q.Len(), "want: the task is scheduled")
	})
}

// TestRunDoesNotAwaitHangingTasks: it ends within a limit, and awaits what Start has begun.
func TestRunDoesNotAwaitHangingTasks(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		takes time.Duration
		want  time.Duration
		warns int
	}{
		"nothing runs": {},
		"it ends":      {takes: 3 * time.Second, want: 3 * time.Second},
		"it hangs":     {takes: time.Hour, want: 5 * time.Second, warns: 1},
	} {
		for _, started := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, started %t", name, started), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					q, log := newQueue()
					end := begin(t, q)

					synctest.Wait()

					slow := task("v", func(context.Context) error {
						time.Sleep(test.takes)

						return nil
					})

					switch {
					case test.takes == 0:
					case started:
						require.NotNil(t, q.Start(slow), "want: a queue that runs starts the task")
					default:
						q.Add(slow)
					}

					synctest.Wait()
					require.Equal(t, test.want, end(), "how long Run awaits tasks")
					require.Equal(t, test.warns, log.count("not awaited"), "want: a task that hangs is logged")
					time.Sleep(2 * time.Hour)
				})
			})
		}
	}
}

// TestATaskThatFailsIsRetriedOnTime also after an attempt that is none of the background.
func TestATaskThatFailsIsRetriedOnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue()
		began := time.Now()

		var attempts []time.Duration

		end := begin(t, q)

		synctest.Wait()
		require.ErrorIs(t, q.Do(t.Context(), task("v", func(context.Context) error {
			attempts = append(attempts, time.Since(began))
			if len(attempts) < 4 {
				return errStuck
			}

			return nil
		})), errStuck)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, attempts)
		require.Zero(t, end(), "want: Run ends at once when nothing runs")
	})
}

// TestATaskOfABusyPoolRunsNext has a task that is scheduled while another one of its pool runs.
func TestATaskOfABusyPoolRunsNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue()
		began := time.Now()
		after := time.Duration(0)
		end := begin(t, q)

		q.Add(task("slow", func(context.Context) error {
			time.Sleep(3 * time.Second)

			return nil
		}))
		synctest.Wait()
		q.Add(task("next", func(context.Context) error {
			after = time.Since(began)

			return nil
		}))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3*time.Second, after, "want: the task runs as soon as the worker of its pool is free")
		require.Zero(t, q.Len(), "want: no task is left")
		end()
	})
}
