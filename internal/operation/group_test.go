package operation_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/test/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitLimit is no verdict on speed: it only ends a test that would hang.
const (
	waitLimit    = time.Minute
	pollInterval = time.Millisecond
)

var errBroken = errors.New("broken")

// gate is an operation that runs until it is released.
type gate struct {
	entered, release chan struct{}
	runs             atomic.Int32
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}, 16), release: make(chan struct{})}
}

func (g *gate) run(result string, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		g.runs.Add(1)
		g.entered <- struct{}{}
		<-g.release

		return result, err
	}
}

func publish(volume, target string, readonly bool) operation.Call {
	return operation.Call{
		Key: volume, Object: target, Method: "NodePublishVolume",
		Request: &csi.NodePublishVolumeRequest{VolumeId: volume, TargetPath: target, Readonly: readonly},
	}
}

func unpublish(volume, target string) operation.Call {
	return operation.Call{
		Key: volume, Object: target, Method: "NodeUnpublishVolume",
		Request: &csi.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: target},
	}
}

func finished(result string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return result, nil }
}

func TestIdenticalRetryJoins(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]error{"success": nil, "failure": errBroken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			group, first := operation.NewGroup(), newGate()

			var callers sync.WaitGroup

			call := func() {
				got, err := operation.Do(t.Context(), group, publish("v", "/t", false), first.run("done", want))
				if !errors.Is(err, want) || (err == nil && got != "done") {
					t.Errorf("got %q, %v", got, err)
				}
			}

			callers.Go(call)
			await.Receive(t, first.entered, "the first operation to begin")

			for range 8 {
				callers.Go(call)
			}

			close(first.release)
			await.Return(t, callers.Wait, "all callers to have their answers")
			// A late caller may have come after the first operation ended.
			require.Positive(t, first.runs.Load(), "want: the operation runs")
			require.Zero(t, group.Len(), "want: no operation is left")
		})
	}
}

func TestOperationOutlivesItsCaller(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	ctx, cancel := context.WithCancel(t.Context())
	left, cancelled := make(chan error), make(chan error, 1)

	go func() {
		_, err := operation.Do(ctx, group, publish("v", "/t", false), func(ctx context.Context) (string, error) {
			result, err := first.run("done", nil)(ctx)
			cancelled <- ctx.Err()

			return result, err
		})
		left <- err
	}()

	await.Receive(t, first.entered, "the first operation to begin")
	cancel()
	require.ErrorIs(t, await.Receive(t, left, "the cancelled caller to return"), context.Canceled)

	joined := make(chan string)

	go func() {
		got, err := operation.Do(context.WithoutCancel(ctx), group, publish("v", "/t", false), finished("a second run"))
		if err != nil {
			got = err.Error()
		}
		joined <- got
	}()

	// The retry must be queued before the release, or it would run again: a second
	// conflicting call proves that the first is still there.
	_, err := operation.Do(t.Context(), group, publish("v", "/t", true), finished("never"))
	require.ErrorAs(t, err, new(*operation.ConflictError))
	close(first.release)
	require.NoError(t, await.Receive(t, cancelled, "the operation to end"), "the operation was cancelled with its caller")
	require.Contains(t, []string{"done", "a second run"}, await.Receive(t, joined, "the retry to return"))
	require.EqualValues(t, 1, first.runs.Load(), "want: the retry joins the first run")
}

func TestSameCallWithOtherArgumentsConflicts(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	result := make(chan error, 1)

	go func() {
		_, err := operation.Do(t.Context(), group, publish("v", "/t", false), first.run("", nil))
		result <- err
	}()

	await.Receive(t, first.entered, "the first operation to begin")

	// Also when the test fails.
	release := sync.OnceFunc(func() { close(first.release) })
	defer release()

	limited, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	_, err := operation.Do(limited, group, publish("v", "/t", true), finished(""))

	var conflict *operation.ConflictError

	require.ErrorAs(t, err, &conflict, "the same call with other arguments while the first one runs")
	require.Equal(t, "NodePublishVolume", conflict.Method)

	// Another volume is not concerned.
	_, err = operation.Do(t.Context(), group, publish("w", "/t", true), finished(""))
	require.NoError(t, err)

	release()
	require.NoError(t, await.Receive(t, result, "the operation's caller to return"))
}

func TestWorkOfOneKeyIsSerial(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	order := make(chan string, 3)

	var callers sync.WaitGroup

	callers.Go(func() {
		_, _ = operation.Do(t.Context(), group, publish("v", "/t", false), func(ctx context.Context) (string, error) {
			defer func() { order <- "publish" }()

			return first.run("", nil)(ctx)
		})
	})
	await.Receive(t, first.entered, "the first operation to begin")

	queued := func(call operation.Call, name string) {
		before := group.Len()

		callers.Go(func() {
			_, err := operation.Do(t.Context(), group, call, func(context.Context) (string, error) {
				order <- name

				return "", nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})

		require.Eventually(t, func() bool { return group.Len() > before }, waitLimit, pollInterval, "want: the operation is waiting")
	}

	queued(unpublish("v", "/t"), "unpublish")
	// The publish that is still running must not be joined: it will be undone.
	queued(publish("v", "/t", false), "publish again")

	close(first.release)
	await.Return(t, callers.Wait, "all callers to have their answers")
	require.Equal(t, "publish", await.Receive(t, order, "publish to run"))
	require.Equal(t, "unpublish", await.Receive(t, order, "unpublish to run"))
	require.Equal(t, "publish again", await.Receive(t, order, "publish again to run"))
}

// TestExclusiveOperationsAreNotJoined: an exclusive operation runs also behind one of the same
// description, and the retry of a call on another object still joins past it.
func TestExclusiveOperationsAreNotJoined(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	exclusive := operation.Call{Key: "v", Object: "probe", Method: "probe", Exclusive: true}
	start := func(call operation.Call) {
		require.NoError(t, operation.Start(t.Context(), group, call, func(ctx context.Context) { _, _ = first.run("", nil)(ctx) }))
	}

	start(publish("v", "/t", false))
	await.Receive(t, first.entered, "the first operation to begin")
	start(exclusive)
	start(exclusive)
	start(operation.Call{Key: "v", Object: "probe", Method: "probe"})
	require.Equal(t, 4, group.Len(), "want: none of them has joined another one")
	start(publish("v", "/t", false))
	require.Equal(t, 4, group.Len(), "want: the retry joins")

	close(first.release)
	require.NoError(t, group.Drain(t.Context()))
	require.EqualValues(t, 4, first.runs.Load(), "want: each operation runs once")
}

func TestPanicBecomesAnError(t *testing.T) {
	t.Parallel()

	group := operation.NewGroup()
	_, err := operation.Do(t.Context(), group, publish("v", "/t", false),
		func(context.Context) (string, error) { panic("at the disco") })

	var panicked *operation.PanicError

	require.ErrorAs(t, err, &panicked)
	require.Equal(t, "at the disco", panicked.Value)
	require.Contains(t, string(panicked.Stack), "TestPanicBecomesAnError")

	got, err := operation.Do(t.Context(), group, publish("v", "/t", false), finished("well again"))
	require.NoError(t, err)
	require.Equal(t, "well again", got)
}

func TestDrainWaitsForTheOperations(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	result := make(chan error, 1)

	go func() {
		_, err := operation.Do(t.Context(), group, publish("v", "/t", false), first.run("", nil))
		result <- err
	}()

	await.Receive(t, first.entered, "the first operation to begin")

	drained := make(chan error, 1)

	go func() { drained <- group.Drain(t.Context()) }()

	require.Eventually(t, func() bool {
		_, err := operation.Do(t.Context(), group, publish("w", "/t", false), finished(""))

		return errors.Is(err, operation.ErrDraining)
	}, waitLimit, pollInterval, "want: the draining group refuses operations")
	require.Empty(t, drained, "want: Drain waits for the operation")

	close(first.release)
	require.NoError(t, await.Receive(t, drained, "Drain to return after the last operation"))
	require.NoError(t, await.Receive(t, result, "the operation's caller to return"))
}

func TestDrainGivesUp(t *testing.T) {
	t.Parallel()

	group := operation.NewGroup()
	entered, result := make(chan struct{}), make(chan error, 1)

	go func() {
		_, err := operation.Do(t.Context(), group, publish("v", "/t", false), func(ctx context.Context) (string, error) {
			close(entered)
			<-ctx.Done()

			return "", context.Cause(ctx)
		})
		result <- err
	}()

	await.Receive(t, entered, "the operation to begin")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, group.Drain(ctx), context.Canceled)
	require.ErrorIs(t, await.Receive(t, result, "the drained operation's caller to return"), operation.ErrDraining)
}

func TestDrainLetsAnOperationStartItsOwn(t *testing.T) {
	t.Parallel()

	group, outer := operation.NewGroup(), newGate()
	result := make(chan error, 1)

	go func() {
		_, err := operation.Do(t.Context(), group, publish("v", "/t", false), func(ctx context.Context) (string, error) {
			if _, err := outer.run("", nil)(ctx); err != nil {
				return "", err
			}

			return operation.Do(ctx, group, publish("w", "/t", false), finished("nested"))
		})
		result <- err
	}()

	await.Receive(t, outer.entered, "the outer operation to begin")

	drained := make(chan error, 1)

	go func() { drained <- group.Drain(t.Context()) }()

	require.Eventually(t, func() bool {
		_, err := operation.Do(t.Context(), group, publish("x", "/t", false), finished(""))

		return errors.Is(err, operation.ErrDraining)
	}, waitLimit, pollInterval, "want: the draining group refuses operations")

	close(outer.release)
	require.NoError(t, await.Receive(t, result, "the operation's caller to return"))
	require.NoError(t, await.Receive(t, drained, "Drain to return after the last operation"))
}

func TestCancelledCallStartsNothing(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	group, began := operation.NewGroup(), make(chan struct{}, 1)
	_, err := operation.Do(ctx, group, publish("v", "/t", false), func(context.Context) (string, error) {
		began <- struct{}{}

		return "", nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, group.Drain(t.Context()))
	require.Empty(t, began, "want: nothing begins for a cancelled caller")
}

func TestStartReturnsBeforeItsEnd(t *testing.T) {
	t.Parallel()

	group, first := operation.NewGroup(), newGate()
	require.NoError(t, operation.Start(t.Context(), group, publish("v", "/t", false), func(ctx context.Context) {
		_, _ = first.run("", nil)(ctx)
	}))

	behind := make(chan int32, 1)
	finished := make(chan error, 1)

	go func() {
		_, err := operation.Do(t.Context(), group, unpublish("v", "/t"), func(context.Context) (string, error) {
			behind <- first.runs.Load()

			return "", nil
		})
		finished <- err
	}()

	await.Receive(t, first.entered, "the first operation to begin")
	require.Eventually(t, func() bool { return group.Len() == 2 }, waitLimit, pollInterval, "want: both operations are in the group")
	require.Empty(t, behind, "want: the second operation waits for the first")
	close(first.release)
	require.NoError(t, await.Receive(t, finished, "the call behind the first to return"))
	require.EqualValues(t, 1, await.Receive(t, behind, "the call behind the first to run"), "want: the second operation runs once")
	require.NoError(t, group.Drain(t.Context()))
	require.ErrorIs(t, operation.Start(t.Context(), group, publish("v", "/t", false), func(context.Context) {}), operation.ErrDraining)
}
