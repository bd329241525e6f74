package tuning_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestRecordsAreChecked has records that the driver would not have written.
func TestRecordsAreChecked(t *testing.T) {
	t.Parallel()

	changed := tuning.ChangedScheduler{Number: 0, VolumeID: "volume", Scheduler: "none"}
	limited := tuning.Limited{TargetPath: "/a", VolumeID: "volume", Pod: podUID, Number: 0}

	require.NoError(t, changed.Check())
	require.NoError(t, limited.Check())

	for name, change := range map[string]func(*tuning.ChangedScheduler){
		"a negative number":    func(r *tuning.ChangedScheduler) { r.Number = -1 },
		"no scheduler":         func(r *tuning.ChangedScheduler) { r.Scheduler = "" },
		"an id that is a path": func(r *tuning.ChangedScheduler) { r.VolumeID = "../x" },
	} {
		bad := changed
		change(&bad)
		require.Error(t, bad.Check(), "a queue's record with %s", name)
	}

	for name, change := range map[string]func(*tuning.Limited){
		"a negative number":    func(r *tuning.Limited) { r.Number = -1 },
		"no pod":               func(r *tuning.Limited) { r.Pod = "" },
		"an id that is a path": func(r *tuning.Limited) { r.VolumeID = "../x" },
	} {
		bad := limited
		change(&bad)
		require.Error(t, bad.Check(), "a limit's record with %s", name)
	}
}

// TestLimitsOfOtherVolumesDoNotCount: the pod uses another volume or device, and another pod the
// volume: the limits of the publication that ends are removed.
func TestLimitsOfOtherVolumesDoNotCount(t *testing.T) {
	t.Parallel()

	const otherPod = "7f0a1f5e-0000-4000-8000-0123456789ff"

	for name, change := range map[string]func(*tuning.Limited){
		"another volume": func(l *tuning.Limited) { l.VolumeID = "other" },
		"another device": func(l *tuning.Limited) { l.Number = 6 },
		"another pod":    func(l *tuning.Limited) { l.Pod = otherPod },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, wanted := newFixture(t), volume.Mutable{volume.KeyReadIOPS: "3"}
			write(t, filepath.Join(filepath.Dir(filepath.Dir(f.ioMax)), "pod"+otherPod, "io.max"), "")

			other := limited("/b")
			change(&other)
			require.NoError(t, f.SetLimits(t.Context(), other, wanted))
			require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))
			requireFile(t, readOnly, f.ioMax)

			require.NoError(t, f.RemoveLimits("/a"))
			requireFile(t, unset, f.ioMax)
		})
	}
}

// TestALimitThatCannotBeRemovedIsTriedAgain keeps the record of limits until they are removed.
func TestALimitThatCannotBeRemovedIsTriedAgain(t *testing.T) {
	t.Parallel()

	f, wanted := newFixture(t), volume.Mutable{volume.KeyReadIOPS: "3"}
	require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))

	// A directory cannot be written.
	require.NoError(t, os.Remove(f.ioMax))
	require.NoError(t, os.Mkdir(f.ioMax, 0o755))
	errtext.Require(t, f.RemoveLimits("/a"), "for pod "+podUID)
	errtext.Require(t, f.SetLimits(t.Context(), limited("/a"), wanted), "mutable parameters of volume")

	require.NoError(t, os.Remove(f.ioMax))
	write(t, f.ioMax, readOnly)
	require.NoError(t, f.RemoveLimits("/a"))
	requireFile(t, unset, f.ioMax)
}

// TestLimitsMoveWithTheirDevice replaces the record of a path whose volume has another device.
func TestLimitsMoveWithTheirDevice(t *testing.T) {
	t.Parallel()

	f, wanted := newFixture(t), volume.Mutable{volume.KeyReadIOPS: "3"}
	moved := limited("/a")
	moved.Number = 6

	require.NoError(t, f.SetLimits(t.Context(), moved, wanted))
	require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))
	requireFile(t, readOnly, f.ioMax)
	require.NoError(t, f.RemoveLimits("/a"))
	requireFile(t, unset, f.ioMax)
}

func TestEachLimitIsSet(t *testing.T) {
	t.Parallel()

	for want, wanted := range map[string]volume.Mutable{
		"7:5 rbps=4096 wbps=max riops=max wiops=max": {volume.KeyReadBytesPerSecond: "4096"},
		"7:5 rbps=max wbps=4096 riops=max wiops=max": {volume.KeyWriteBytesPerSecond: "4096"},
		"7:5 rbps=max wbps=max riops=4096 wiops=max": {volume.KeyReadIOPS: "4096"},
		"7:5 rbps=max wbps=max riops=max wiops=4096": {volume.KeyWriteIOPS: "4096"},
	} {
		f := newFixture(t)
		require.True(t, tuning.HasLimits(wanted), "want: a limit for %s", want)
		require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))
		requireFile(t, want, f.ioMax)
	}

	require.False(t, tuning.HasLimits(volume.Mutable{volume.KeyIOScheduler: "none"}), "want: a scheduler is no limit")
}

// TestAnUnchangedSchedulerIsNotRestored: only a scheduler that the driver has changed is.
func TestAnUnchangedSchedulerIsNotRestored(t *testing.T) {
	t.Parallel()

	for name, wanted := range map[string]volume.Mutable{
		"nothing":             {},
		"the one that it has": {volume.KeyIOScheduler: "none"},
		"read-ahead":          {volume.KeyReadAheadKiB: "64"},
	} {
		f := newFixture(t)
		require.NoError(t, f.SetQueue(t.Context(), "volume", 5, wanted), name)

		write(t, f.scheduler, "none [mq-deadline]\n")
		f.ResetQueue("volume", 5)
		requireFile(t, "none [mq-deadline]\n", f.scheduler)
	}
}

func TestReadAheadIsSet(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyReadAheadKiB: "64"}))
	requireFile(t, "64", filepath.Join(filepath.Dir(f.scheduler), "read_ahead_kb"))
}

// TestAQueueThatCannotBeSetFailsTheCall: a device that has gone, and a scheduler that the kernel lacks.
func TestAQueueThatCannotBeSetFailsTheCall(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.Error(t, f.SetQueue(t.Context(), "volume", 6, volume.Mutable{volume.KeyIOScheduler: "none"}), "want: the device does not exist")
	errtext.Require(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyIOScheduler: "bfq"}), "mutable parameters of volume")
	errtext.Require(t, f.SetQueue(t.Context(), "volume", 6, volume.Mutable{volume.KeyReadAheadKiB: "64"}), "mutable parameters of volume")
}

// TestNothingIsChangedWithoutARecord: what no record names could never be reset.
func TestNothingIsChangedWithoutARecord(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	scheduler := filepath.Join(dir, "block", "loop5", "queue", "scheduler")
	ioMax := filepath.Join(dir, "cgroup", "kubepods", "pod"+podUID, "io.max")

	write(t, filepath.Join(dir, "cgroup", "cgroup.controllers"), "io\n")
	write(t, ioMax, unset)
	write(t, scheduler, "[none] mq-deadline\n")
	write(t, filepath.Join(filepath.Dir(scheduler), "read_ahead_kb"), "128\n")

	open := func() (*tuning.Tuner, *state.Store) {
		store := state.New(filepath.Join(dir, "state"), state.Options{Log: log})
		tuner := tuning.New(queue.New(filepath.Join(dir, "block")), cgroup.NewLimiter(filepath.Join(dir, "cgroup"), log), store, log)
		require.NoError(t, store.Open(t.Context()))
		tuner.Load()

		return tuner, store
	}
	deadline, iops := volume.Mutable{volume.KeyIOScheduler: "mq-deadline"}, volume.Mutable{volume.KeyReadIOPS: "3"}

	tuner, store := open()
	require.NoError(t, store.Close())
	require.Error(t, tuner.SetQueue(t.Context(), "volume", 5, deadline), "want: the record cannot be stored")
	requireFile(t, "[none] mq-deadline\n", scheduler)
	require.Error(t, tuner.SetLimits(t.Context(), limited("/a"), iops), "want: the record cannot be stored")
	requireFile(t, unset, ioMax)
	require.NoError(t, tuner.Close())

	tuner, store = open()
	require.NoError(t, tuner.SetQueue(t.Context(), "volume", 5, deadline))
	require.NoError(t, tuner.SetLimits(t.Context(), limited("/a"), iops))
	require.NoError(t, store.Close())
	require.Error(t, tuner.RemoveLimits("/a"), "want: the record stays")
	write(t, scheduler, "bfq [mq-deadline]\n")
	require.Error(t, tuner.SetQueue(t.Context(), "other", 5, volume.Mutable{volume.KeyIOScheduler: "bfq"}), "want: the device stays the former volume's")
	requireFile(t, "bfq [mq-deadline]\n", scheduler)
	require.NoError(t, tuner.Close())

	// The next start knows both.
	tuner, store = open()
	write(t, scheduler, "none [mq-deadline]\n")
	tuner.ResetQueue("volume", 5)
	requireFile(t, "none", scheduler)
	write(t, ioMax, readOnly)
	require.NoError(t, tuner.RemoveLimits("/a"))
	requireFile(t, unset, ioMax)
	require.NoError(t, tuner.Close())
	require.NoError(t, store.Close())
}

// TestLimitsNeedCgroups: without a hierarchy no limit is supported, and all else is.
func TestLimitsNeedCgroups(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(f.ioMax), "..", "..")))
	require.NoError(t, f.CheckSupported(volume.Mutable{volume.KeyIOScheduler: "none"}))
	require.ErrorIs(t, f.CheckSupported(volume.Mutable{volume.KeyReadIOPS: "3"}), cgroup.ErrUnsupported)
}

// TestRecoverKeepsLimitsInUse: the scheduler of a device that is attached, or may be, stays.
func TestRecoverKeepsLimitsInUse(t *testing.T) {
	t.Parallel()

	for name, isAttached := range map[string]func(int) (bool, error){
		"attached": func(int) (bool, error) { return true, nil },
		"unknown":  func(int) (bool, error) { return false, os.ErrPermission },
	} {
		f := newFixture(t)
		require.NoError(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyIOScheduler: "mq-deadline"}), name)
		write(t, f.scheduler, "none [mq-deadline]\n")
		f.Recover(nil, isAttached)
		requireFile(t, "none [mq-deadline]\n", f.scheduler)
	}
}
