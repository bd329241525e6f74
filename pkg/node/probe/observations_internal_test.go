package probe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// attached is an observation of a volume at loop3.
func attached(sequence uint64) observation {
	return observation{attached: &Attachment{Number: 3, Sequence: sequence}}
}

func TestIOErrorsAreOfTheAttachment(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	o.set("volume", attached(1))

	event := health.Event{Kind: health.IOError, Device: unix.Mkdev(loop.Major, 3), At: time.Now()}
	require.Equal(t, []string{"volume"}, o.recordIOError(event))
	require.Equal(t, []string{"volume"}, o.withIOErrors())

	event.Device = unix.Mkdev(loop.Major, 4)
	require.Empty(t, o.recordIOError(event), "the device of no volume")

	event.Device = unix.Mkdev(8, 3)
	require.Empty(t, o.recordIOError(event), "the device is no loop device")

	o.set("volume", attached(1))
	require.Equal(t, []string{"volume"}, o.withIOErrors(), "the same attachment keeps its errors")

	o.set("volume", attached(2))
	require.Empty(t, o.withIOErrors(), "another attachment has no errors")
}

// TestLateIOErrorsAreOfTheDetachedVolume: the event of a request that failed may come when the device is detached already, as
// that of a volume whose staging has failed.
func TestLateIOErrorsAreOfTheDetachedVolume(t *testing.T) {
	t.Parallel()

	late := health.Event{Kind: health.IOError, Device: unix.Mkdev(loop.Major, 3), At: time.Now()}

	for name, test := range map[string]struct {
		then  func(o *Observations)
		event health.Event
		want  []string
	}{
		"soon":                   {func(*Observations) {}, late, []string{"volume"}},
		"too late":               {func(*Observations) {}, health.Event{Device: late.Device, At: time.Now().Add(2 * lateEvents)}, nil},
		"another device":         {func(*Observations) {}, health.Event{Device: unix.Mkdev(loop.Major, 4), At: late.At}, nil},
		"no loop device":         {func(*Observations) {}, health.Event{Device: unix.Mkdev(8, 3), At: late.At}, nil},
		"attached for another":   {func(o *Observations) { o.Attach("other", Attachment{Number: 3, Sequence: 2}, 1, false) }, late, []string{"other"}},
		"a reader of another":    {func(o *Observations) { o.AddReader("other", 3) }, late, []string{"other"}},
		"attached, and detached": {func(o *Observations) { o.AddReader("other", 3); o.Detach(3) }, late, []string{"other"}},
		"detached twice":         {func(o *Observations) { o.Detach(3) }, late, []string{"volume"}},
		"all of it detached":     {func(o *Observations) { o.AddReader("volume", 3); o.DetachAll("volume") }, late, []string{"volume"}},
		"all of another":         {func(o *Observations) { o.AddReader("volume", 3); o.DetachAll("other") }, late, []string{"volume"}},
		"forgotten":              {func(o *Observations) { o.Forget("volume") }, late, nil},
		"another one forgotten":  {func(o *Observations) { o.Forget("other") }, late, []string{"volume"}},
	} {
		o := NewObservations()
		o.Attach("volume", Attachment{Number: 3, Sequence: 1}, 1, false)
		o.Detach(3)
		test.then(o)

		require.Equal(t, test.want, o.recordIOError(test.event), "the volume of an event: %s", name)
	}
}

func TestDevicesAreMappedToVolumes(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	o.Attach("ephemeral", Attachment{Number: 1, Sequence: 1}, 4096, true)
	o.Attach("volume", Attachment{Number: 2, Sequence: 2}, 4096, false)
	o.AddReader("volume", 3)

	for number, want := range map[int][]string{1: {"ephemeral"}, 2: {"volume"}, 3: {"volume"}, 4: nil} {
		require.Equal(t, want, o.atDevice(unix.Mkdev(loop.Major, uint32(number))), "loop%d", number)
	}

	o.Detach(3)
	require.Empty(t, o.atDevice(unix.Mkdev(loop.Major, 3)), "a detached device")

	o.Forget("ephemeral")
	require.Empty(t, o.atDevice(unix.Mkdev(loop.Major, 1)), "the device of a forgotten volume")
}

func TestFilesystemsAreMappedToVolumes(t *testing.T) {
	t.Parallel()

	one, two := [2]int32{1, 1}, [2]int32{2, 2}
	o := NewObservations()
	o.set("first", observation{filesystem: one})
	o.set("second", observation{filesystem: one})
	o.set("second", observation{filesystem: one})
	o.set("third", observation{})
	require.Equal(t, []string{"first", "second"}, o.inFilesystem(one), "want: each volume once")
	require.Empty(t, o.inFilesystem([2]int32{}), "want: a volume without a filesystem is in none")

	o.set("first", observation{filesystem: two})
	require.Equal(t, []string{"second"}, o.inFilesystem(one))
	require.Equal(t, []string{"first"}, o.inFilesystem(two))

	o.Forget("first")
	require.Empty(t, o.inFilesystem(two), "want: a forgotten volume is in no filesystem")
}

func TestUnexplainedWrites(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	o.Attach("volume", Attachment{Number: 1, Sequence: 1}, 4096, false)

	o.recordWrite("volume", time.Now())
	require.Empty(t, o.takeUnexplainedWrites("volume"), "the event of a write before the attachment may arrive late")

	first, second := time.Now().Add(time.Second), time.Now().Add(2*time.Second)
	o.recordWrite("volume", first)
	o.recordWrite("volume", second)
	require.Equal(t, []time.Time{first, second}, o.takeUnexplainedWrites("volume"), "a later write does not hide an earlier one")
	require.Empty(t, o.takeUnexplainedWrites("volume"), "want: the writes are taken once")

	for range 2 * maxUnexplainedWrites {
		o.recordWrite("volume", first)
	}

	require.Len(t, o.takeUnexplainedWrites("volume"), maxUnexplainedWrites, "want: the writes are limited")

	o.recordWrite("unknown", first)
	require.Empty(t, o.takeUnexplainedWrites("unknown"), "a volume without an observation")
}

func TestMountsChanged(t *testing.T) {
	t.Parallel()

	const path = "/target"

	observed := map[string]observedMount{path: {id: 7}}
	point := mount.Point{ID: 7, Path: path}
	readOnly := mount.Point{ID: 7, Path: path, ReadOnly: true}
	covering := mount.Point{ID: 8, Path: path}
	elsewhere := mount.Point{ID: 9, Path: "/elsewhere"}

	for name, test := range map[string]struct {
		observed map[string]observedMount
		table    []mount.Point
		want     bool
	}{
		"same mount":              {observed, []mount.Point{point, elsewhere}, false},
		"mount is gone":           {observed, []mount.Point{elsewhere}, true},
		"mount is read-only":      {observed, []mount.Point{readOnly}, true},
		"mount is covered":        {observed, []mount.Point{point, covering}, true},
		"mount was missing":       {map[string]observedMount{path: {}}, []mount.Point{elsewhere}, true},
		"volume without any path": {nil, []mount.Point{elsewhere}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, mountsChanged(test.observed, newMountTable(test.table)), "want: the mounts have changed only if one differs")
		})
	}
}

func TestQueriesOfAHangingFilesystemAreRefused(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	end, err := o.BeginQuery("volume")
	require.NoError(t, err)

	_, err = o.BeginQuery("volume")
	require.NoError(t, err, "a query beside one that has just begun")

	long := time.Now().Add(-2 * queryTimeout)
	o.queries["hanging"] = []*time.Time{&long}

	_, err = o.BeginQuery("hanging")
	require.ErrorIs(t, err, ErrNoResponse)

	end()
	require.Len(t, o.queries["volume"], 1, "want: the ended query leaves the hanging one")
}

func TestTheUsageIsThatOfTheLastObservation(t *testing.T) {
	t.Parallel()

	o := NewObservations()
	o.Attach("volume", Attachment{Number: 1}, 1000, false)
	require.EqualValues(t, 1000, o.LastUsage("volume").Bytes.Total, "the image's size")

	seen := attached(1)
	seen.attached.deviceBytes = 2000
	o.set("volume", seen)
	require.EqualValues(t, 2000, o.LastUsage("volume").Bytes.Total, "the device's size")

	o.SetUsage("volume", health.Usage{Bytes: health.Amount{Total: 1500, Used: 7}})
	require.EqualValues(t, 7, o.LastUsage("volume").Bytes.Used, "the usage measured")
}
