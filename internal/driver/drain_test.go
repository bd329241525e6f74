package driver_test

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

func TestDrainLetsRunningWorkFinishAndTakesNoMore(t *testing.T) {
	t.Parallel()

	entered, release := make(chan struct{}), make(chan struct{})
	address := served.Address()
	staged := withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		close(entered)
		<-release

		return &csi.NodeStageVolumeResponse{}, nil
	})
	r := start(t, func(config *driver.Config) {
		staged(config)
		config.HTTPEndpoint = address
	})

	answer := make(chan error, 1)

	go func() {
		_, err := csi.NewNodeClient(r.conn).NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
		answer <- err
	}()

	// Work whose caller is gone counts as well.
	orphanEntered, orphanEnded := make(chan struct{}), make(chan struct{})
	gone, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)

	go func() {
		_, err := operation.Do(gone, r.Operations(), operation.Call{Key: "v", Method: "M", Request: &csi.NodeStageVolumeRequest{}},
			func(context.Context) (int, error) {
				close(orphanEntered)
				<-release
				close(orphanEnded)

				return 0, nil
			})
		left <- err
	}()

	await.Receive(t, entered, "the call to begin")
	await.Receive(t, orphanEntered, "the operation without a call to begin")
	leave()
	require.Error(t, await.Receive(t, left, "the operation's caller, who has left"), "an operation whose caller has left")

	// A second connection, made before the drain, is to be turned away too.
	r.stop()
	require.Eventually(t, func() bool {
		_, err := os.Lstat(r.socket())

		return os.IsNotExist(err)
	}, waitLimit, time.Millisecond, "the socket goes first")
	require.Eventually(t, func() bool {
		_, err := csi.NewIdentityClient(r.conn).Probe(t.Context(), &csi.ProbeRequest{})

		return status.Code(err) == codes.Unavailable
	}, waitLimit, time.Millisecond, "want: the draining driver refuses Probe")

	turnsAwayEveryCall(t, r.conn)

	code, body := get(t, "http://"+address+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code, "want: a draining driver is not ready")
	require.Contains(t, body, "shutting down")

	code, body = get(t, "http://"+address+"/livez")
	require.Equal(t, http.StatusServiceUnavailable, code, "want: a driver without its CSI socket is not alive")
	require.Contains(t, body, "no answer on the CSI socket")

	code, _ = get(t, "http://"+address+"/healthz")
	require.Equal(t, http.StatusOK, code, "want: a draining driver is healthy")

	select {
	case err := <-r.done:
		require.Fail(t, "ended before its work", "%v", err)
	default:
	}

	close(release)
	require.NoError(t, await.Receive(t, answer, "NodeStageVolume to return"))
	await.Receive(t, orphanEnded, "the operation without a call to end")
	require.NoError(t, r.wait(t))
	require.NoFileExists(t, r.config.ReadyFile)
}

func TestDrainGivesUpAfterItsTimeout(t *testing.T) {
	t.Parallel()

	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)

	r := start(t, func(config *driver.Config) { config.DrainTimeout = time.Millisecond })

	result := make(chan error, 1)

	go func() {
		_, err := operation.Do(context.Background(), r.Operations(),
			operation.Call{Key: "v", Method: "M", Request: &csi.NodeStageVolumeRequest{}},
			func(ctx context.Context) (int, error) {
				close(entered)
				<-ctx.Done() // cancelled at last

				return 0, context.Cause(ctx)
			})
		result <- err
	}()

	await.Receive(t, entered, "the call to begin")
	r.stop()
	require.ErrorIs(t, r.wait(t), driver.ErrDrain)
	errtext.Require(t, r.wait(t), "within 800µs", "a fifth of the timeout is kept for the end")
	require.ErrorIs(t, await.Receive(t, result, "the operation that outlasts the drain"), operation.ErrDraining)
	require.NoFileExists(t, r.socket())
}

// TestDrainEndsCallsThatHang: their callers get an answer, and the process ends.
func TestDrainEndsCallsThatHang(t *testing.T) {
	t.Parallel()

	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)

	staged := withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		close(entered)
		<-release

		return &csi.NodeStageVolumeResponse{}, nil
	})
	r := start(t, func(config *driver.Config) {
		staged(config)
		config.DrainTimeout = time.Millisecond
	})
	answer := make(chan error, 1)

	go func() {
		_, err := csi.NewNodeClient(r.conn).NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
		answer <- err
	}()

	await.Receive(t, entered, "the call to begin")
	r.stop()
	require.ErrorIs(t, r.wait(t), driver.ErrDrain)
	rpccode.Require(t, await.Receive(t, answer, "the call to end with the driver"), codes.Unavailable)
}

func TestDrainAwaitsTheReopeningOfAPool(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) { config.Health.RelistPeriod = 10 * time.Millisecond })
	entered, release := make(chan struct{}), make(chan struct{})

	var done atomic.Bool

	r.ReopenPool("default", func(context.Context, string) {
		close(entered)
		<-release
		done.Store(true)
	})
	await.Receive(t, entered, "the pool to be served again")
	r.stop()
	require.Never(t, func() bool { return len(r.done) > 0 }, 100*time.Millisecond, time.Millisecond, "want: the driver does not end before the pool is served")
	close(release)
	require.NoError(t, r.wait(t))
	require.True(t, done.Load(), "want: the call ended before the driver did")
}

func TestUntilSignalEndsWithTheFirstAndExitsWithTheSecond(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		signals, exited := make(chan os.Signal), make(chan int, 1)

		ctx, stop := driver.UntilSignal(t.Context(), signals, time.Hour, func(code int) { exited <- code })
		defer stop()

		require.NoError(t, ctx.Err())

		signals <- os.Interrupt

		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), driver.ErrSignal)
		errtext.Require(t, context.Cause(ctx), "interrupt")

		// As timeout(1) does.
		signals <- os.Interrupt

		synctest.Wait()
		require.Empty(t, exited, "want: one request, which may be two signals, does not exit")

		time.Sleep(time.Second)

		signals <- os.Interrupt

		require.Equal(t, 1, <-exited, "want: the second request exits with 1")
	})
}

func TestUntilSignalEndsWithoutASignal(t *testing.T) {
	t.Parallel()

	ctx, stop := driver.UntilSignal(t.Context(), make(chan os.Signal), 0, func(int) {})
	stop()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)

	parent, cancel := context.WithCancel(t.Context())
	ctx, stop = driver.UntilSignal(parent, make(chan os.Signal), 0, func(int) {})
	defer stop()

	cancel()
	await.Receive(t, ctx.Done(), "the context to end with its parent")
}

func TestUntilSignalExitsAfterTheLimit(t *testing.T) {
	t.Parallel()

	signals, exited := make(chan os.Signal), make(chan int, 1)

	_, stop := driver.UntilSignal(t.Context(), signals, time.Millisecond, func(code int) { exited <- code })
	defer stop()

	await.Send(t, signals, os.Interrupt, "the signal to be taken")
	require.Equal(t, 1, await.Receive(t, exited, "the exit when the limit has passed"), "want: the end of the limit exits with 1")
}
