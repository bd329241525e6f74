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

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
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

// TestCallsBecomeSlow once the copy of their snapshot has run for the grace, whichever comes first.
func TestCallsBecomeSlow(t *testing.T) {
	t.Parallel()

	const grace = time.Second

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		before, leaveBefore := copies.untilSlow(t.Context(), "snapshot", grace)
		other, leaveOther := copies.untilSlow(t.Context(), "other", grace)

		time.Sleep(2 * grace)
		require.NoError(t, before.Err(), "want: the grace begins with the copy")

		_, end := copies.Start(t.Context(), "a", "snapshot")
		defer end()

		time.Sleep(grace / 2)

		after, leaveAfter := copies.untilSlow(t.Context(), "snapshot", grace)
		gone, leaveGone := copies.untilSlow(t.Context(), "snapshot", grace)
		require.False(t, leaveGone(), "want: a call that leaves within the grace is not slow")
		require.Error(t, gone.Err(), "want: its context has ended")

		time.Sleep(grace / 2)
		<-before.Done()
		require.NoError(t, after.Err(), "want: a later call has a grace of its own")
		require.True(t, leaveBefore(), "want: the first call is slow")

		time.Sleep(grace / 2)
		<-after.Done()
		require.True(t, leaveAfter(), "want: the later call is slow, too")
		require.NoError(t, other.Err(), "want: the copy of another snapshot does not matter")
		require.False(t, leaveOther(), "want: it is not slow")
		require.Empty(t, copies.waiters, "want: no call waits")
	})
}

// TestAStoppedCopyIsNotWaitedFor, as another snapshot may have its name by then.
func TestAStoppedCopyIsNotWaitedFor(t *testing.T) {
	t.Parallel()

	const grace = time.Second

	synctest.Test(t, func(t *testing.T) {
		copies := NewRunning()
		_, endStopped := copies.Start(t.Context(), "a", "snapshot")
		before, leaveBefore := copies.untilSlow(t.Context(), "snapshot", grace)
		stopped := make(chan error, 1)

		go func() { stopped <- copies.Stop(t.Context(), "a") }()

		synctest.Wait()

		after, leaveAfter := copies.untilSlow(t.Context(), "snapshot", grace)

		time.Sleep(2 * grace)
		require.NoError(t, before.Err(), "want: the grace of a call ends with its copy")
		require.NoError(t, after.Err(), "want: a stopped copy begins no grace")

		_, end := copies.Start(t.Context(), "b", "snapshot")

		time.Sleep(grace)
		synctest.Wait()
		require.True(t, leaveBefore() && leaveAfter(), "want: the grace begins with the other copy")
		endStopped()
		require.NoError(t, <-stopped)
		require.True(t, copies.Has("b"), "want: the other copy runs")
		end()
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

	turns := 0
	_, err := b.Await(t.Context(), taken.Name, func(ctx context.Context) (*record.Snapshot, error) {
		turns++
		if turns > 1 {
			return taken, nil
		}

		<-ctx.Done()

		return nil, ctx.Err()
	})
	require.ErrorIs(t, err, state.ErrNotOpen)
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
	require.NoError(t, os.WriteFile(b.served().VolumePath(source.ID, volume.BackingImage), make([]byte, source.CapacityBytes), 0o600))

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
