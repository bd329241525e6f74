package probe

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

func TestBusyVolumesAreRemembered(t *testing.T) {
	t.Parallel()

	known := holder.Process{PID: 42}
	mounted, device := busyVolume{path: "/target"}, busyVolume{device: Attachment{Number: 7, Sequence: 1}}
	named := func(busy busyVolume) busyVolume {
		busy.holder, busy.searchedAt = known, time.Unix(1, 0)

		return busy
	}
	released := device
	released.released = true

	for name, test := range map[string]struct {
		act  func(b *busyVolumes)
		want *busyVolume
		held bool
	}{
		"nothing":                      {func(*busyVolumes) {}, nil, false},
		"a mount":                      {func(b *busyVolumes) { b.add("a", mounted) }, &mounted, true},
		"a device":                     {func(b *busyVolumes) { b.add("a", device) }, &device, true},
		"another volume's":             {func(b *busyVolumes) { b.add("b", mounted) }, nil, false},
		"released":                     {func(b *busyVolumes) { b.add("a", released) }, &released, false},
		"again: the process is known":  {func(b *busyVolumes) { b.add("a", named(mounted)); b.add("a", mounted) }, new(named(mounted)), true},
		"another path: it is unknown":  {func(b *busyVolumes) { b.add("a", named(busyVolume{path: "/other"})); b.add("a", mounted) }, &mounted, true},
		"another device: unknown, too": {func(b *busyVolumes) { b.add("a", named(busyVolume{device: Attachment{Number: 8}})); b.add("a", device) }, &device, true},
		"updated":                      {func(b *busyVolumes) { b.add("a", mounted); b.update("a", named(mounted)) }, new(named(mounted)), true},
		"updated too late":             {func(b *busyVolumes) { b.update("a", named(mounted)) }, nil, false},
		"updated, but another path": {func(b *busyVolumes) {
			b.add("a", mounted)
			b.update("a", named(busyVolume{path: "/other"}))
		}, &mounted, true},
		"updated, but another attachment": {func(b *busyVolumes) {
			b.add("a", device)
			b.update("a", named(busyVolume{device: Attachment{Number: 7, Sequence: 2}}))
		}, &device, true},
		"forgotten": {func(b *busyVolumes) { b.add("a", mounted); b.forget("a") }, nil, false},
		"removed, if it is that": {func(b *busyVolumes) {
			b.add("a", mounted)
			b.remove("a", func(busy busyVolume) bool { return busy.path == "/other" })
		}, &mounted, true},
	} {
		b := newBusyVolumes()
		test.act(b)
		require.Equal(t, test.want, b.get("a"), name)
		require.Equal(t, test.held, b.isHeld("a"), "want: something is held: %s", name)
		require.Equal(t, test.held, len(b.ids()) == 1 && b.ids()[0] == "a", "want: the volume is listed: %s", name)
	}

	require.True(t, device.path == "" && (&device).isDevice(), "want: a device has no path")
	require.False(t, (&mounted).isDevice(), "want: a mount is no device")
	require.False(t, (*busyVolume)(nil).isDevice(), "want: nothing is no device")
}

// TestCallsRecordBusyVolumes whose pool object has another name.
func TestCallsRecordBusyVolumes(t *testing.T) {
	t.Parallel()

	p := &Prober{Memory: NewMemory(), failures: newFailedStagings()}
	record := &staged.Volume{VolumeID: "volume", Content: "content"}

	p.MountBusy(record, "/target")
	require.Equal(t, "/target", p.busy.get("volume").path)
	p.Unmounted(record, "/other")
	require.True(t, p.busy.isHeld("volume"), "want: another path was unmounted")
	p.Unmounted(record, "/target")
	require.False(t, p.busy.isHeld("volume"), "want: the path was unmounted")

	p.DeviceBusy(record, 7, 12)
	require.Equal(t, Attachment{Number: 7, Sequence: 12}, p.busy.get("volume").device)

	p.failures.add(failedStaging{volume: &staged.Volume{VolumeID: "volume"}, at: time.Now()})
	p.StagedOrPublished("volume")
	require.False(t, p.busy.isHeld("volume"), "want: nothing is in the way of a volume in use")

	_, failed := p.failures.get("volume")
	require.False(t, failed, "want: the staging has succeeded")
}

// busyState is the state of a probe that has found the mounts, of a volume without a record.
func busyState(busy busyVolume, mounts map[string]observedMount) *probeState {
	p := &Prober{
		Memory: NewMemory(), config: Config{Host: Host{Loops: loop.NewLoops(loop.LoopsOptions{})}, Log: slog.New(slog.DiscardHandler)},
	}
	p.busy.add("a", busy)

	s := &probeState{prober: p, view: volumeView{id: "a"}, observation: observation{mounts: mounts}}
	s.busy = &busyProbe{volumes: p.busy, loops: p.config.Loops, id: "a", held: p.busy.get("a"), found: &s.findings}

	return s
}

func TestABusyMountIsACondition(t *testing.T) {
	t.Parallel()

	const path = "/target of no mount"

	now, mounted := time.Now(), map[string]observedMount{path: {id: 7}}

	for name, test := range map[string]struct {
		busy   busyVolume
		mounts map[string]observedMount
		text   string
	}{
		"a process":           {busyVolume{path: path, holder: self(t), searchedAt: now}, mounted, "keeps it in use; end it: " + path},
		"not visible":         {busyVolume{path: path, searchedAt: now}, mounted, "a process not visible here"},
		"unmounted":           {busyVolume{path: path, holder: self(t), searchedAt: now}, map[string]observedMount{}, ""},
		"released":            {busyVolume{path: path, searchedAt: now, released: true}, mounted, ""},
		"of no earlier probe": {busyVolume{path: path}, mounted, "a process not visible here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := busyState(test.busy, test.mounts)
			require.NoError(t, s.busy.report(t.Context(), s.mounts))

			if test.text == "" {
				require.Empty(t, s.entries, "want: no condition")
				require.False(t, s.prober.busy.isHeld("a"), "want: nothing is held any more")

				return
			}

			require.Equal(t, []health.Reason{health.VolumeBusy}, reasons(s.entries))
			require.Contains(t, s.entries[0].Message, "not unmounted: ")
			require.Contains(t, s.entries[0].Message, test.text)
			require.True(t, s.prober.busy.isHeld("a"), "want: it is held")
			require.Equal(t, test.busy.searchedAt, s.prober.busy.get("a").searchedAt, "want: a search that fails, here of no mount, is repeated")
		})
	}
}

// TestADetachedDeviceIsNotBusy: the number is beyond those of all devices.
func TestADetachedDeviceIsNotBusy(t *testing.T) {
	t.Parallel()

	const number = 1<<20 - 1

	s := busyState(busyVolume{device: Attachment{Number: number, Sequence: 1}, searchedAt: time.Now()}, nil)
	require.NoError(t, s.busy.report(t.Context(), s.mounts))
	require.Empty(t, s.entries, "want: no condition")
	require.Nil(t, s.prober.busy.get("a"), "want: a volume without a record is forgotten")

	s = busyState(busyVolume{device: Attachment{Number: number, Sequence: 1}, searchedAt: time.Now()}, nil)
	s.volume, s.busy.inUse = &staged.Volume{VolumeID: "a"}, true
	require.True(t, s.busy.isUnstaged(), "want: a volume whose device was busy is unmounted")
	require.NoError(t, s.busy.report(t.Context(), s.mounts))
	require.Empty(t, s.entries, "want: no condition")
	require.True(t, s.prober.busy.get("a").released, "want: a volume with a record is unstaged until the next call")

	s = busyState(busyVolume{device: Attachment{Number: number}, released: true}, nil)
	require.NoError(t, s.busy.report(t.Context(), s.mounts))
	require.True(t, s.busy.held.released, "want: a device that was detached stays detached")

	s.busy.held = nil
	require.NoError(t, s.busy.report(t.Context(), s.mounts))
	require.Empty(t, s.entries, "want: nothing is busy")
}
