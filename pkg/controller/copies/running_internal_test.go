package copies

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errLeft = errors.New("the caller has left")

// TestStopWaitsForTheEndOfACopy: the copy has the cause, and Stop returns when it has ended and not
// before, unless its caller leaves.
func TestStopWaitsForTheEndOfACopy(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		require.NoError(t, copies.Stop(t.Context(), "a"), "want: there is nothing to stop")

		copying, end := copies.Start(t.Context(), "a", "snapshot")
		require.True(t, copies.Has("a"), "want: the copy runs")
		require.False(t, copies.Has("b"), "want: another copy does not run")
		require.NoError(t, copying.Err())

		leaving, leave := context.WithCancelCause(t.Context())
		leave(errLeft)
		require.ErrorIs(t, copies.Stop(leaving, "a"), errLeft, "want: Stop of a caller that has left says so")
		require.ErrorIs(t, context.Cause(copying), catalog.ErrDeleted, "want: the copy gets the cause")

		stopped := make(chan error, 1)

		go func() { stopped <- copies.Stop(t.Context(), "a") }()

		synctest.Wait()
		require.Empty(t, stopped, "want: Stop waits for the end of the copy")
		end()
		require.NoError(t, <-stopped)
		require.False(t, copies.Has("a"), "want: the copy has ended")
	})
}

// TestTheEndOfACopyLeavesItsSuccessor: a copy that was restarted goes on when the first one ends.
func TestTheEndOfACopyLeavesItsSuccessor(t *testing.T) {
	t.Parallel()

	copies := NewRunning()
	first, endFirst := copies.Start(t.Context(), "a", "snapshot")
	second, endSecond := copies.Start(t.Context(), "a", "snapshot")

	endFirst()
	require.Error(t, first.Err(), "want: the context of the first copy has ended")
	require.NoError(t, second.Err())
	require.True(t, copies.Has("a"), "want: the second copy runs")
	endSecond()
	require.False(t, copies.Has("a"), "want: no copy runs")
}

// slowCall waits for the copy of a name as Await does.
type slowCall struct {
	done chan struct{}
	// slow gets the id of the snapshot whose copy is slow, or "" if the call has ended before.
	slow chan string
}

const grace = time.Second

func (r *Running) callFor(name string) slowCall {
	call := slowCall{done: make(chan struct{}), slow: make(chan string, 1)}

	go func() { call.slow <- r.awaitSlow(name, grace, call.done) }()

	synctest.Wait()

	return call
}

// pass lets the time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestCallsBecomeSlow once the copy of their snapshot has run for the grace, whichever comes first.
func TestCallsBecomeSlow(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		before, other := copies.callFor("snapshot"), copies.callFor("other")

		pass(2 * grace)
		require.Empty(t, before.slow, "want: the grace begins with the copy")

		_, end := copies.Start(t.Context(), "a", "snapshot")
		defer end()

		pass(grace / 2)

		after, gone := copies.callFor("snapshot"), copies.callFor("snapshot")
		_, endOther := copies.Start(t.Context(), "b", "another")

		close(gone.done)
		require.Empty(t, <-gone.slow, "want: a call that ends within the grace is not slow")
		endOther()

		pass(grace / 2)
		require.Len(t, before.slow, 1, "want: the grace is not that of other copies")
		require.Empty(t, after.slow, "want: a later call has a grace of its own")
		require.Equal(t, "a", <-before.slow, "want: the first call is slow")

		pass(grace / 2)
		require.Len(t, after.slow, 1, "want: the later call is slow, too")
		require.Empty(t, other.slow, "want: the copy of another snapshot does not matter")
		close(other.done)
		require.Empty(t, <-other.slow, "want: it is not slow")
	})
}

// TestAStoppedCopyIsNotWaitedFor, as another snapshot may have its name by then.
func TestAStoppedCopyIsNotWaitedFor(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		_, endStopped := copies.Start(t.Context(), "a", "snapshot")
		before := copies.callFor("snapshot")
		stopped := make(chan error, 1)

		go func() { stopped <- copies.Stop(t.Context(), "a") }()

		synctest.Wait()

		after := copies.callFor("snapshot")

		pass(2 * grace)
		require.Empty(t, before.slow, "want: the grace of a call ends with its copy")
		require.Empty(t, after.slow, "want: a stopped copy begins no grace")

		_, end := copies.Start(t.Context(), "b", "snapshot")

		pass(grace)
		require.Len(t, before.slow, 1, "want: the grace begins with the other copy")
		require.Len(t, after.slow, 1, "want: the grace begins with the other copy")
		require.Equal(t, "b", <-before.slow)
		endStopped()
		require.NoError(t, <-stopped)
		require.True(t, copies.Has("b"), "want: the other copy runs")
		end()
	})
}

// TestARestartedCopyHasAGraceOfItsOwn, and a call does not become slow by one that has ended.
func TestARestartedCopyHasAGraceOfItsOwn(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		_, endFirst := copies.Start(t.Context(), "a", "snapshot")
		call := copies.callFor("snapshot")

		pass(grace / 2)

		_, end := copies.Start(t.Context(), "a", "snapshot")

		endFirst()
		pass(grace / 2)
		require.Empty(t, call.slow, "want: the grace begins with the second copy")
		end()
		pass(2 * grace)
		require.Empty(t, call.slow, "want: no grace ends without a copy")
		close(call.done)
		require.Empty(t, <-call.slow, "want: the call is not slow")
	})
}

// TestAnAcknowledgementThatIsNotRecordedFailsTheCall: the CO must not hear of a snapshot that a start forgets.
func TestAnAcknowledgementThatIsNotRecordedFailsTheCall(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.Grace = time.Millisecond
	taken := b.snapshot("taken", b.create("source"), record.PhaseCreating)
	_, end := b.Running.Start(t.Context(), taken.ID, taken.Name)
	t.Cleanup(end)
	require.NoError(t, b.store.Close())

	_, err := b.Await(t.Context(), taken.Name, func(ctx context.Context) (*record.Snapshot, error) {
		<-ctx.Done()

		return nil, ctx.Err()
	})
	require.ErrorIs(t, err, state.ErrNotOpen)
	errtext.Require(t, err, `record that snapshot "taken" is being copied`)
}

// TestASnapshotWithoutItsSourceFails: it can never be copied again.
func TestASnapshotWithoutItsSourceFails(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	orphan := b.snapshot("orphan", source, record.PhaseCopying)
	require.NoError(t, b.Catalog.ForgetVolume(source.ID))
	require.Equal(t, map[string]record.Phase{"snapshot orphan": record.PhaseCopying}, b.phases())
	rpccode.Require(t, b.takeAgain(t.Context(), b.served(), orphan), codes.NotFound)
	require.Equal(t, record.PhaseFailed, b.phases()["snapshot orphan"])
}

// TestCopiesReportTheirProgress, unless they are instant.
func TestCopiesReportTheirProgress(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	require.NoError(t, os.WriteFile(b.served().ObjectPath(source.Object()), make([]byte, source.CapacityBytes), 0o600))

	taking := b.taking(nil, b.wanted("taken", source))
	taking.sources = []*record.Volume{source}

	require.NoError(t, taking.reserve(t.Context()))
	require.NoError(t, taking.prepare(t.Context()))
	require.NoError(t, taking.take(t.Context()))

	listed := b.Progress.List()
	require.Len(t, listed, 1, "want: the copy is listed")
	require.Equal(t, taking.copies[0].copy.PointInTime(), listed[0].Done == 0, "want: what is copied is reported")
	require.NoError(t, taking.copies[0].abort(errBroken))
}
