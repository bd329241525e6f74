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
)

const (
	podUID   = "7f0a1f5e-0000-4000-8000-0123456789ab"
	unset    = "7:5 rbps=max wbps=max riops=max wiops=max"
	readOnly = "7:5 rbps=max wbps=max riops=3 wiops=max"
)

// fixture is a tuner over a sysfs and a cgroup v2 hierarchy of plain files.
type fixture struct {
	*tuning.Tuner

	ioMax, scheduler string
}

func newFixture(t *testing.T) fixture {
	t.Helper()

	dir := t.TempDir()
	f := fixture{
		ioMax:     filepath.Join(dir, "cgroup", "kubepods", "pod"+podUID, "io.max"),
		scheduler: filepath.Join(dir, "block", "loop5", "queue", "scheduler"),
	}
	write(t, filepath.Join(dir, "cgroup", "cgroup.controllers"), "io\n")
	write(t, f.ioMax, unset)
	write(t, f.scheduler, "[none] mq-deadline\n")
	write(t, filepath.Join(filepath.Dir(f.scheduler), "read_ahead_kb"), "128\n")

	log := slog.New(slog.DiscardHandler)
	store := state.New(filepath.Join(dir, "state"), state.Options{Owner: t.Name(), Log: log})
	f.Tuner = tuning.New(queue.New(filepath.Join(dir, "block")),
		cgroup.NewLimiter(filepath.Join(dir, "cgroup"), log), store, log)

	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, store.Close())
	})
	f.Load()

	return f
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func requireFile(t *testing.T, want, path string) {
	t.Helper()

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(content))
}

func limited(targetPath string) tuning.Limited {
	return tuning.Limited{TargetPath: targetPath, VolumeID: "volume", Pod: podUID, Number: 5}
}

func TestLimitsStayUntilThePodsLastPublicationIsRemoved(t *testing.T) {
	t.Parallel()

	f, wanted := newFixture(t), volume.Mutable{volume.KeyReadIOPS: "3"}
	require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))
	require.NoError(t, f.SetLimits(t.Context(), limited("/b"), wanted))
	requireFile(t, readOnly, f.ioMax)

	require.NoError(t, f.RemoveLimits("/a"))
	requireFile(t, readOnly, f.ioMax)

	require.NoError(t, f.RemoveLimits("/b"))
	requireFile(t, unset, f.ioMax)
	require.NoError(t, f.RemoveLimits("/b"), "without a record there is nothing to remove")
}

func TestRecoverRemovesTheLimitsOfMissingPublications(t *testing.T) {
	t.Parallel()

	f, wanted := newFixture(t), volume.Mutable{volume.KeyReadIOPS: "3"}
	require.NoError(t, f.SetLimits(t.Context(), limited("/a"), wanted))

	attached := func(int) (bool, error) { return true, nil }

	f.Recover(func(string, string) bool { return true }, attached)
	requireFile(t, readOnly, f.ioMax)

	f.Recover(func(_, targetPath string) bool { return targetPath != "/a" }, attached)
	requireFile(t, unset, f.ioMax)
}

func TestTheFormerSchedulerIsRestored(t *testing.T) {
	t.Parallel()

	reset := map[string]func(fixture){
		"detached":               func(f fixture) { f.ResetQueue("volume", 5) },
		"volume forgotten":       func(f fixture) { f.ResetQueues("volume") },
		"another volume's image": func(f fixture) { _ = f.SetQueue(t.Context(), "other", 5, volume.Mutable{}) },
		"not attached at start": func(f fixture) {
			f.Recover(nil, func(int) (bool, error) { return false, nil })
		},
	}

	for name, reset := range reset {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			require.NoError(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyIOScheduler: "mq-deadline"}))
			requireFile(t, "mq-deadline", f.scheduler)

			// The kernel shows all schedulers, the current one in brackets.
			write(t, f.scheduler, "none [mq-deadline]\n")
			f.ResetQueue("other", 5)
			requireFile(t, "none [mq-deadline]\n", f.scheduler)

			reset(f)
			requireFile(t, "none", f.scheduler)

			write(t, f.scheduler, "none [mq-deadline]\n")
			f.ResetQueues("volume")
			requireFile(t, "none [mq-deadline]\n", f.scheduler)
		})
	}
}

// TestADeviceThatIsGoneIsNotReset when another one gets its number, as after a reboot.
func TestADeviceThatIsGoneIsNotReset(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyIOScheduler: "mq-deadline"}))

	gone := filepath.Dir(f.scheduler)
	require.NoError(t, os.Rename(gone, gone+".gone"))
	f.ResetQueue("volume", 5)
	require.NoError(t, os.Rename(gone+".gone", gone))

	write(t, f.scheduler, "none [mq-deadline]\n")
	f.ResetQueue("volume", 5)
	requireFile(t, "none [mq-deadline]\n", f.scheduler)
}

// TestSchedulerIsRestoredAfterAnAttemptThatFailed has the device given to another volume while its former
// scheduler cannot be set: it is restored when that volume is detached.
func TestSchedulerIsRestoredAfterAnAttemptThatFailed(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.SetQueue(t.Context(), "volume", 5, volume.Mutable{volume.KeyIOScheduler: "mq-deadline"}))

	write(t, f.scheduler, "bfq [mq-deadline]\n")
	f.ResetQueue("volume", 5)
	require.NoError(t, f.SetQueue(t.Context(), "other", 5, volume.Mutable{volume.KeyIOScheduler: "bfq"}))
	requireFile(t, "bfq", f.scheduler)

	write(t, f.scheduler, "none [bfq] mq-deadline\n")
	f.ResetQueue("volume", 5)
	requireFile(t, "none [bfq] mq-deadline\n", f.scheduler)

	f.ResetQueue("other", 5)
	requireFile(t, "none", f.scheduler)
}

func TestUnsupportedParametersAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.CheckSupported(volume.Mutable{}))
	require.NoError(t, f.CheckSupported(volume.Mutable{volume.KeyIOScheduler: "mq-deadline", volume.KeyReadIOPS: "3"}))
	require.ErrorIs(t, f.CheckSupported(volume.Mutable{volume.KeyIOScheduler: "bfq"}), queue.ErrUnsupported)
}
