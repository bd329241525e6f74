package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/coalesce"
	"github.com/touchstone-csi/touchstone/test/await"
)

const window = 2 * time.Second

var errContradicts = errors.New("contradicts")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings is what the tests merge: names with values, of which one name can't
// have two.
type settings map[string]int

func merge(merged, in settings) (settings, error) {
	sum := maps.Clone(merged)
	if sum == nil {
		sum = settings{}
	}

	for name, value := range in {
		if has, ok := sum[name]; ok && has != value {
			return nil, fmt.Errorf("%w: %s is %d already", errContradicts, name, has)
		}

		sum[name] = value
	}

	return sum, nil
}

// recorder remembers what was carried out, and when.
type recorder struct {
	start time.Time
	hold  chan struct{}

	mu      sync.Mutex
	changes []made
}

type made struct {
	key   string
	what  settings
	after time.Duration
}

func (r *recorder) execute(ctx context.Context, key string, merged settings) (int, error) {
	r.mu.Lock()
	r.changes = append(r.changes, made{key, merged, time.Since(r.start)})
	count := len(r.changes)
	r.mu.Unlock()

	if r.hold != nil {
		select {
		case <-r.hold:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}

	return count, nil
}

func (r *recorder) all() []made {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.changes)
}

type group = coalesce.Group[string, settings, settings, int]

func start(t *testing.T, window time.Duration) (*group, *recorder) {
	t.Helper()

	r := &recorder{start: time.Now()}

	return coalesce.New(window, merge, r.execute), r
}

// answer is what one caller got.
type answer struct {
	count int
	err   error
	after time.Duration
}

// ask calls without waiting for the answer.
func ask(ctx context.Context, g *group, key string, in settings) <-chan answer {
	answers := make(chan answer, 1)
	began := time.Now()

	go func() {
		count, err := g.Do(ctx, key, in)
		answers <- answer{count, err, time.Since(began)}
	}()

	synctest.Wait()

	return answers
}

func TestRequestsWithinTheWindowAreOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)

		first := ask(t.Context(), g, "a", settings{"size": 1})

		time.Sleep(window - 1)

		second := ask(t.Context(), g, "a", settings{"speed": 2})

		// The window is the first one's: the second waits a nanosecond.
		require.Equal(t, answer{1, nil, window}, <-first)
		require.Equal(t, answer{1, nil, 1}, <-second)
		require.Equal(t, []made{{"a", settings{"size": 1, "speed": 2}, window}}, r.all())
	})
}

func TestRequestAfterTheWindowIsAnotherChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)

		first := ask(t.Context(), g, "a", settings{"size": 1})

		time.Sleep(window)
		synctest.Wait()

		second := ask(t.Context(), g, "a", settings{"size": 2})

		require.Equal(t, 1, (<-first).count, "want: the first change has one request")
		require.Equal(t, 2, (<-second).count, "want: the second change is the second one")
		require.Equal(t, []made{{"a", settings{"size": 1}, window}, {"a", settings{"size": 2}, 2 * window}}, r.all())
	})
}

func TestRequestDuringAChangeIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		r.hold = make(chan struct{})

		first := ask(t.Context(), g, "a", settings{"size": 1})

		time.Sleep(window + 1)

		second := ask(t.Context(), g, "a", settings{"size": 2})

		close(r.hold)
		require.NoError(t, (<-first).err)
		require.NoError(t, (<-second).err)
		require.Len(t, r.all(), 2, "want: two changes are made")
	})
}

func TestKeysAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)

		one := ask(t.Context(), g, "a", settings{"size": 1})
		other := ask(t.Context(), g, "b", settings{"size": 2})

		require.NoError(t, (<-one).err)
		require.NoError(t, (<-other).err)
		require.ElementsMatch(t, []made{{"a", settings{"size": 1}, window}, {"b", settings{"size": 2}, window}}, r.all())
	})
}

func TestAContradictionIsRefusedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)

		first := ask(t.Context(), g, "a", settings{"size": 1})
		refused := <-ask(t.Context(), g, "a", settings{"size": 2, "speed": 3})
		third := ask(t.Context(), g, "a", settings{"depth": 4})

		require.ErrorIs(t, refused.err, errContradicts)
		require.Zero(t, refused.after, "want: a refused request is part of no change")
		require.NoError(t, (<-first).err)
		require.NoError(t, (<-third).err)
		require.Equal(t, []made{{"a", settings{"size": 1, "depth": 4}, window}}, r.all())
	})
}

func TestInvalidRequestOpensNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := coalesce.New(window,
			func(int, int) (int, error) { return 0, errContradicts },
			func(context.Context, string, int) (int, error) { panic("never") })

		_, err := g.Do(t.Context(), "a", 1)
		require.ErrorIs(t, err, errContradicts)

		time.Sleep(2 * window)
	})
}

func TestAWindowOfZeroMergesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, 0)
		r.hold = make(chan struct{})

		first := ask(t.Context(), g, "a", settings{"size": 1})
		second := ask(t.Context(), g, "a", settings{"size": 2})

		close(r.hold)
		require.Zero(t, (<-first).after, "want: no request waits in a window of zero")
		require.Zero(t, (<-second).after, "want: no request waits in a window of zero")
		require.Len(t, r.all(), 2, "want: two changes are made")
	})
}

func TestCancelledCallerCancelsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)

		defer cancel()

		left := ask(impatient, g, "a", settings{"size": 1})
		stayed := ask(t.Context(), g, "a", settings{"speed": 2})

		require.ErrorIs(t, (<-left).err, context.DeadlineExceeded)
		require.Equal(t, answer{1, nil, window}, <-stayed)
		require.Equal(t, []made{{"a", settings{"size": 1, "speed": 2}, window}}, r.all())
	})
}

// TestRetryOfACancelledCallJoins is a CO with a deadline shorter than the
// window.
func TestRetryOfACancelledCallJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)

		for range 3 {
			impatient, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			_, err := g.Do(impatient, "a", settings{"size": 1})

			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}

		_, err := g.Do(t.Context(), "a", settings{"size": 1})
		require.NoError(t, err)
		require.Len(t, r.all(), 1, "want: the retry is part of the one change")
	})
}

func TestChangeIsMadeWithoutItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		impatient, cancel := context.WithCancel(t.Context())
		left := ask(impatient, g, "a", settings{"size": 1})

		cancel()
		require.ErrorIs(t, (<-left).err, context.Canceled)
		time.Sleep(window)
		synctest.Wait()
		require.Len(t, r.all(), 1, "want: the change is made once")
	})
}

func TestCancelledCallOpensNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		gone, cancel := context.WithCancel(t.Context())

		cancel()

		_, err := g.Do(gone, "a", settings{"size": 1})
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(window)
		synctest.Wait()
		require.Empty(t, r.all(), "want: no change is made")
	})
}

type key struct{}

func TestTheChangeHasTheFirstCallersValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := coalesce.New(window, merge, func(ctx context.Context, _ string, _ settings) (any, error) {
			_, limited := ctx.Deadline()
			require.False(t, limited, "want: the change has no deadline")

			return ctx.Value(key{}), nil
		})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "first"), time.Hour)

		defer cancel()

		value, err := g.Do(ctx, "a", nil)
		require.NoError(t, err)
		require.Equal(t, "first", value)
	})
}

func TestPanicIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := coalesce.New(window, merge, func(context.Context, string, settings) (int, error) { panic("oh") })

		_, err := g.Do(t.Context(), "a", nil)

		var panicked *operation.PanicError

		require.ErrorAs(t, err, &panicked)
		require.Equal(t, "oh", panicked.Value)
		require.Contains(t, string(panicked.Stack), "group_test.go")
		require.NoError(t, g.Drain(t.Context()))
	})
}

func TestDrainClosesEveryWindowAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		one := ask(t.Context(), g, "a", settings{"size": 1})
		other := ask(t.Context(), g, "b", settings{"size": 2})

		require.NoError(t, g.Drain(t.Context()))
		require.NoError(t, (<-one).err)
		require.NoError(t, (<-other).err)
		require.ElementsMatch(t, []made{{"a", settings{"size": 1}, 0}, {"b", settings{"size": 2}, 0}}, r.all())

		_, err := g.Do(t.Context(), "a", settings{"size": 3})
		require.ErrorIs(t, err, operation.ErrDraining)

		// Nothing is left that could make a change once more.
		time.Sleep(2 * window)
		synctest.Wait()
		require.Len(t, r.all(), 2, "want: both windows are closed at once")
		require.NoError(t, g.Drain(t.Context()))
	})
}

func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := start(t, window)
		r.hold = make(chan struct{})
		stuck := ask(t.Context(), g, "a", settings{"size": 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)

		defer cancel()

		require.ErrorIs(t, g.Drain(ctx), context.DeadlineExceeded)
		require.Equal(t, answer{0, operation.ErrDraining, time.Second}, <-stuck)
	})
}

// TestEveryRequestIsPartOfExactlyOneChange has many callers at the edge of many
// windows, on the real clock.
func TestEveryRequestIsPartOfExactlyOneChange(t *testing.T) {
	var made, asked atomic.Int64

	g := coalesce.New(50*time.Microsecond,
		func(sum, in int64) (int64, error) { return sum + in, nil },
		func(_ context.Context, _ int, sum int64) (int64, error) { return made.Add(sum), nil })

	var callers sync.WaitGroup

	for caller := range 8 {
		callers.Go(func() {
			for round := range 500 {
				_, err := g.Do(t.Context(), round%3, int64(caller+1))
				if errors.Is(err, operation.ErrDraining) {
					return
				}

				asked.Add(int64(caller + 1))
			}
		})
	}

	await.Return(t, func() {
		for made.Load() < 1000 {
			time.Sleep(time.Microsecond)
		}
	}, "changes that add up to 1000")

	require.NoError(t, g.Drain(t.Context()))
	await.Return(t, callers.Wait, "all callers to have their answers")
	require.Equal(t, asked.Load(), made.Load(), "want: each request is part of one change")
}
