package fsck

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
)

func TestChecksOfOneVolumeAreSerialized(t *testing.T) {
	t.Parallel()

	running := newRunningChecks()
	ctx, end, err := running.start(t.Context(), "volume")
	require.NoError(t, err)
	require.NoError(t, ctx.Err())

	_, endOther, err := running.start(t.Context(), "another")
	require.NoError(t, err, "checks of two volumes run at the same time")
	endOther()

	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()

	_, _, err = running.start(short, "volume")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	end()
	require.ErrorIs(t, ctx.Err(), context.Canceled, "want: what still runs ends with the check")

	_, end, err = running.start(t.Context(), "volume")
	require.NoError(t, err, "the check before has ended")
	end()
	require.Nil(t, running.get("volume"), "want: the ended check is not running")
}

func TestCancelWaitsForTheCheck(t *testing.T) {
	t.Parallel()

	running, cause := newRunningChecks(), errors.New("the volume is assigned to a guest")
	require.NoError(t, running.cancel(t.Context(), "volume", cause), "no check is running")

	ctx, end, err := running.start(t.Context(), "volume")
	require.NoError(t, err)

	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()

	require.ErrorIs(t, running.cancel(short, "volume", cause), context.DeadlineExceeded, "the check has not stopped")
	require.ErrorIs(t, context.Cause(ctx), cause)

	cancelled := make(chan error, 1)

	go func() { cancelled <- running.cancel(context.WithoutCancel(ctx), "volume", cause) }()

	end()
	require.NoError(t, await.Receive(t, cancelled, "the cancelled check to end"))
}

func TestTheEarliestCheckIsFirst(t *testing.T) {
	t.Parallel()

	s, now := newSchedule(), time.Now()

	id, _ := s.first()
	require.Empty(t, id, "no check is planned")

	s.planned["late"] = plannedCheck{due: now.Add(time.Hour)}
	s.planned["early"] = plannedCheck{due: now}
	id, due := s.first()
	require.Equal(t, "early", id)
	require.Equal(t, now, due)

	delete(s.planned, "early")
	id, _ = s.first()
	require.Equal(t, "late", id, "want: the only check that is planned")
}

func TestScheduleRemembersTries(t *testing.T) {
	t.Parallel()

	s, now := newSchedule(), time.Now()
	require.Equal(t, now, s.lastTried("volume", now), "a volume that is not planned")

	s.planned["volume"] = plannedCheck{triedAt: now}
	require.Equal(t, now, s.lastTried("volume", now))
	require.Equal(t, now, s.lastTried("volume", time.Time{}), "without a new try")
	require.Equal(t, now, s.lastTried("volume", now.Add(-time.Hour)), "an older try")
}

func TestScheduleWakesOnceForChanges(t *testing.T) {
	t.Parallel()

	s := newSchedule()
	s.markChanged("a")
	s.markChanged("b")
	s.markChanged("a")
	require.Len(t, s.wake, 1, "want: the schedule is woken once")
	require.ElementsMatch(t, []string{"a", "b"}, s.takeChanged())
	require.Empty(t, s.takeChanged(), "want: the changes are taken once")
}
