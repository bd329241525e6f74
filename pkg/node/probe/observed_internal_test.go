package probe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

func TestForgottenVolumesLeaveNothing(t *testing.T) {
	t.Parallel()

	one := [2]int32{1, 1}
	o := NewObservations()
	o.Attach("volume", Attachment{Number: 1, Sequence: 1}, 4096, false)
	o.AddReader("volume", 2)
	o.AddReader("other", 3)
	o.set("volume", observation{attached: &Attachment{Number: 1, Sequence: 1}, filesystem: one})
	o.set("other", observation{filesystem: one})

	o.DetachAll("volume")
	require.Empty(t, o.atDevice(unix.Mkdev(loop.Major, 1)), "want: a detached volume has no device")
	require.Empty(t, o.atDevice(unix.Mkdev(loop.Major, 2)), "want: a detached volume has no second device")
	require.Equal(t, []string{"other"}, o.atDevice(unix.Mkdev(loop.Major, 3)))
	require.Equal(t, []string{"volume", "other"}, o.inFilesystem(one), "want: what was observed stays")

	o.Forget("unknown")
	o.Forget("volume")
	require.Equal(t, []string{"other"}, o.inFilesystem(one))
	require.Zero(t, o.last("volume"), "want: a forgotten volume has no observation")

	o.Forget("other")
	require.Empty(t, o.index.byFilesystem, "want: a filesystem without volumes is forgotten")
	require.Empty(t, o.index.byNumber, "want: no device is mapped")
}

func TestAnObservationReplacesTheLast(t *testing.T) {
	t.Parallel()

	o, at := NewObservations(), time.Now()
	o.set("volume", attached(1))
	o.recordForeignWrite("volume", at)
	o.recordIOError(health.Event{Device: unix.Mkdev(loop.Major, 3), At: at})
	o.recordWrite("volume", at)
	o.set("volume", attached(1))
	require.Equal(t, at, o.last("volume").foreignWriteAt, "want: the same attachment keeps what events reported")
	require.Len(t, o.last("volume").unexplainedWrites, 1, "want: the same attachment keeps its writes")

	o.set("volume", attached(2))
	require.Zero(t, o.last("volume").foreignWriteAt, "want: another attachment has no foreign write")
	require.Empty(t, o.takeUnexplainedWrites("volume"), "want: another attachment has no writes")

	now := observation{mounts: map[string]observedMount{"/path": {id: 7}}, checkPeriod: time.Hour}
	o.AddReader("other", 4)
	o.set("volume", now)
	require.Empty(t, o.atDevice(unix.Mkdev(loop.Major, 3)), "want: a volume without a device has none")
	require.Equal(t, []string{"other"}, o.atDevice(unix.Mkdev(loop.Major, 4)))
	require.Equal(t, time.Hour, o.CheckPeriod("volume"))
	require.True(t, o.IsVolumesMount("volume", "/path", 7), "want: the mount was observed")
	require.False(t, o.IsVolumesMount("volume", "/path", 8), "want: another mount was not observed")
	require.False(t, o.IsVolumesMount("unknown", "/path", 0), "want: nothing was observed of the volume")

	require.Empty(t, o.withChangedMounts([]mount.Point{{ID: 7, Path: "/path"}}), "want: the mount is as it was")
	require.Equal(t, []string{"volume"}, o.withChangedMounts(nil))

	// The number of a device that another volume has got stays with that.
	o.set("volume", attached(3))
	o.AddReader("other", 3)
	o.set("volume", observation{})
	require.Equal(t, []string{"other"}, o.atDevice(unix.Mkdev(loop.Major, 3)))
}

func TestOnlyWritesAfterTheAttachmentCount(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	o.set("volume", observation{})
	o.recordWrite("volume", time.Now())
	require.Empty(t, o.takeUnexplainedWrites("volume"), "want: a volume that is not attached has no device to disturb")

	o.Attach("volume", Attachment{Number: 1}, 4096, true)

	limit := o.last("volume").attachedAt.Add(maxWriteDelay)
	o.recordWrite("volume", limit)
	require.Empty(t, o.takeUnexplainedWrites("volume"), "want: the event of an earlier write may arrive until then")
	o.recordWrite("volume", limit.Add(1))
	require.Len(t, o.takeUnexplainedWrites("volume"), 1, "want: a later write is another one")
	require.True(t, o.last("volume").growth.covers(time.Now()), "want: the writes of the format are explained")

	o.Attach("volume", Attachment{Number: 2}, 8192, false)
	require.EqualValues(t, 8192, o.last("volume").imageBytes, "want: the size of the new image")
}

func TestAttachmentsAreDistinguished(t *testing.T) {
	t.Parallel()

	var none *Attachment

	one := &Attachment{Number: 1, Sequence: 2}
	require.True(t, one.is(1, 2), "want: the same attachment")
	require.False(t, one.is(2, 2), "want: another number is another attachment")
	require.False(t, one.is(1, 3), "want: another sequence is another attachment")
	require.False(t, none.is(0, 0), "want: no attachment is none")
	require.False(t, (&Attachment{Number: 1}).is(1, 0), "want: without a sequence it is unknown")

	require.True(t, replaced(one, &Attachment{Number: 1, Sequence: 3}), "want: another sequence")
	require.False(t, replaced(one, one), "want: the same sequence")
	require.False(t, replaced(nil, one), "want: there was none")
	require.False(t, replaced(one, nil), "want: there is none")

	begin := time.Now()
	window := growth{after: begin, until: begin.Add(2)}
	require.False(t, window.covers(begin), "want: a write at the begin precedes the growth")
	require.True(t, window.covers(begin.Add(1)), "want: a write within the growth")
	require.False(t, window.covers(begin.Add(2)), "want: a write at the end follows the growth")
}

func TestEachStateOfAMountIsCompared(t *testing.T) {
	t.Parallel()

	plain := mount.Point{ID: 7, Path: "/path"}
	observed := map[string]observedMount{"/path": {id: 7, mountState: mountStateOf(&plain)}}

	for name, point := range map[string]mount.Point{
		"read-only filesystem": {ID: 7, Path: "/path", SuperReadOnly: true},
		"emergency":            {ID: 7, Path: "/path", SuperOptions: []string{"emergency_ro"}},
		"shut down":            {ID: 7, Path: "/path", SuperOptions: []string{"shutdown"}},
	} {
		require.True(t, mountsChanged(observed, newMountTable([]mount.Point{point})), "want: it has changed: %s", name)
	}

	covered := newMountTable([]mount.Point{{ID: 8, Path: "/path"}, plain})
	require.True(t, mountsChanged(observed, covered), "want: the newest mount is visible, in any order of the table")
}

func TestQueriesResumeAfterAHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := NewObservations()
		end, err := o.BeginQuery("volume")
		require.NoError(t, err)
		time.Sleep(queryTimeout)

		endOther, err := o.BeginQuery("volume")
		require.NoError(t, err, "want: at its limit a query does not hang yet")
		time.Sleep(time.Nanosecond)

		_, err = o.BeginQuery("volume")
		require.ErrorIs(t, err, ErrNoResponse)

		_, err = o.BeginQuery("other")
		require.NoError(t, err, "want: another filesystem responds")
		end()

		endAgain, err := o.BeginQuery("volume")
		require.NoError(t, err, "want: the filesystem responds again")
		endAgain()
		endOther()
		require.NotContains(t, o.queries, "volume", "want: no query is left")
	})
}

func TestUnusedGatesAreForgotten(t *testing.T) {
	t.Parallel()

	gate := NewGate()
	leave, _ := gate.TryEnter("volume")
	leaveToo, _ := gate.TryEnter("volume")
	leave()
	require.Len(t, gate.byVolume, 1, "want: a probe is inside")
	leaveToo()
	require.Empty(t, gate.byVolume, "want: the gate is not used any more")

	began := time.Now()
	reopen := gate.Close("volume")
	require.Less(t, time.Since(began), gateTimeout, "want: without a probe inside it is closed at once")
	require.Len(t, gate.byVolume, 1, "want: the gate is closed")
	reopen()
	require.Empty(t, gate.byVolume, "want: the gate is not used any more")
}
