package tuning

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/logs"
)

const usedID, unusedID = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"

// TestWatcherRefreshes runs a watcher: it applied the volumes in use at its start, when their
// attributes change, when a pool is served, and periodically; a failure of one keeps nothing else
// from it. The time stands still, so that no period ends for what an event should cause.
func TestWatcherRefreshes(t *testing.T) {
	t.Parallel()

	pools, serve := newPools(t)
	first := serve("default")

	refreshed, modified, fake := make(chan string), make(chan string, 100), testclock.NewFakeClock(time.Now())
	said := &logs.Buffer{}
	watcher := &Watcher{
		Pools: pools, Clock: fake, Log: slog.New(slog.NewTextHandler(said, nil)),
		InUse:    func() []string { return []string{usedID} },
		IsInUse:  func(id string) bool { return id == usedID },
		Modified: func(id string) { modified <- id },
		Apply: func(_ context.Context, id string) error {
			refreshed <- id

			return errors.New("the volume cannot be refreshed")
		},
	}

	stop := start(t, watcher)

	require.Equal(t, usedID, await.Receive(t, refreshed, "the refresh at the start"))

	require.NoError(t, first.SetMutable(unusedID, volume.Mutable{volume.KeyReadAheadKiB: "64"}))
	require.Equal(t, unusedID, await.Receive(t, modified, "the change of a volume that is not in use"))
	require.NoError(t, first.SetMutable(usedID, volume.Mutable{volume.KeyReadAheadKiB: "64"}))
	require.Equal(t, usedID, await.Receive(t, modified, "the change of a volume in use"))
	require.Equal(t, usedID, await.Receive(t, refreshed, "the refresh after a change"))

	late := serve("late")
	require.Equal(t, usedID, await.Receive(t, refreshed, "the refresh after a pool is served"))
	require.NoError(t, late.SetMutable(usedID, volume.Mutable{volume.KeyReadAheadKiB: "64"}))
	require.Equal(t, usedID, await.Receive(t, refreshed, "the refresh after a change in that pool"))

	fake.Step(pollPeriod)
	require.Equal(t, usedID, await.Receive(t, refreshed, "the refresh after a period"))

	stop()
	require.Contains(t, said.String(), "the volume cannot be refreshed", "want: a failure is logged")
}

// TestTheEndOfAWatcherEndsWhatItApplies, and begins nothing.
func TestTheEndOfAWatcherEndsWhatItApplies(t *testing.T) {
	t.Parallel()

	pools, serve := newPools(t)
	serve("default")

	applied, release, said := make(chan string, 100), make(chan struct{}), &logs.Buffer{}
	stop := start(t, &Watcher{
		Pools: pools, Clock: testclock.NewFakeClock(time.Now()), Log: slog.New(slog.NewTextHandler(said, nil)),
		InUse: func() (ids []string) {
			for i := range 2 * maxApplied {
				ids = append(ids, strconv.Itoa(i))
			}

			return ids
		},
		Apply: func(ctx context.Context, id string) error {
			applied <- id

			<-ctx.Done()
			<-release

			return context.Cause(ctx)
		},
	})

	for range maxApplied {
		await.Receive(t, applied, "as many volumes as are applied to at once")
	}

	// A watcher that does not wait ends sooner.
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	stop()

	select {
	case <-release:
	default:
		t.Error("want: the watcher waits for what it applies")
	}

	require.Empty(t, applied, "want: nothing is applied after the end")
	require.NotContains(t, said.String(), "cannot apply", "want: the end is no failure")
}

// TestAHangingVolumeDelaysNoOther: while its parameters are being applied, many periods end, and another
// volume's parameters change. Then they are applied once more, as they may have changed meanwhile.
func TestAHangingVolumeDelaysNoOther(t *testing.T) {
	t.Parallel()

	pools, serve := newPools(t)
	served := serve("default")

	polled, applied, release := make(chan struct{}, 100), make(chan string, 100), make(chan struct{})
	fake := testclock.NewFakeClock(time.Now())
	stop := start(t, &Watcher{
		Pools: pools, Clock: fake, Log: slog.New(slog.DiscardHandler),
		InUse: func() []string {
			polled <- struct{}{}

			return []string{usedID}
		},
		IsInUse:  func(string) bool { return true },
		Modified: func(string) {},
		Apply: func(_ context.Context, id string) error {
			applied <- id

			if id == usedID {
				<-release
			}

			return nil
		},
	})

	await.Receive(t, polled, "the first poll")
	require.Equal(t, usedID, await.Receive(t, applied, "the volume that hangs"))

	for range 2 * maxApplied {
		fake.Step(pollPeriod)
		await.Receive(t, polled, "the next poll")
	}

	require.NoError(t, served.SetMutable(unusedID, volume.Mutable{volume.KeyReadAheadKiB: "64"}))
	require.Equal(t, unusedID, await.Receive(t, applied, "the change of the other volume"))

	close(release)
	require.Equal(t, usedID, await.Receive(t, applied, "the volume that does not hang any more"))
	stop()
	require.Empty(t, applied, "want: the parameters are applied once for all polls")
}

// newPools returns a set of two pools, and a function that serves one of them.
func newPools(t *testing.T) (*pool.Set, func(name string) *pool.Pool) {
	t.Helper()

	directories := map[string]string{"default": filepath.Join(t.TempDir(), "default"), "late": filepath.Join(t.TempDir(), "late")}
	pools := pool.NewSet(directories)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	return pools, func(name string) *pool.Pool {
		require.NoError(t, os.MkdirAll(directories[name], 0o700))

		opened, err := pool.Open(name, directories[name], pool.Options{})
		require.NoError(t, err)
		pools.Serve(opened)

		return opened
	}
}

// start runs a watcher until stop is called.
func start(t *testing.T, watcher *Watcher) (stop func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		watcher.Run(ctx)
	}()

	return func() {
		cancel()
		await.Receive(t, ended, "the end of the watcher")
	}
}

func TestParametersBecomeAttributesOfTheQueue(t *testing.T) {
	t.Parallel()

	require.EqualValues(t, -1, queueOf(volume.Mutable{}).ReadAheadKiB, "want: read-ahead stays as it is")
	require.EqualValues(t, 0, queueOf(volume.Mutable{volume.KeyReadAheadKiB: "0"}).ReadAheadKiB, "want: no read-ahead")
	require.Equal(t, "bfq", queueOf(volume.Mutable{volume.KeyIOScheduler: "bfq"}).Scheduler)
}
