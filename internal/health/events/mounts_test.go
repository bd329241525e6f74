package events_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestChangesOfMountsAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	const (
		readOnly     = unix.MS_REMOUNT | unix.MS_RDONLY
		bindReadOnly = readOnly | unix.MS_BIND
	)

	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	source := events.NewMounts()
	require.Equal(t, "mounts", source.Name())

	// What ended can be started again.
	for range 2 {
		running := start(t, source)

		for _, change := range []func() error{
			func() error { return unix.Mount("test", dir, "tmpfs", 0, "") },
			func() error { return unix.Mount("", dir, "", bindReadOnly, "") },
			func() error { return unix.Mount("", dir, "", readOnly, "") },
			func() error { return unix.Unmount(dir, 0) },
		} {
			before := time.Now()

			require.NoError(t, change())
			require.False(t, running.next(t, ofKind(health.MountsChanged)).At.Before(before), "want: the event is not older than its cause")
		}

		require.NoError(t, running.stop())
		require.Empty(t, running.drain(), "one event for each change")
	}
}

// TestAStormOfMountsEndsWithAnEvent, after few others.
func TestAStormOfMountsEndsWithAnEvent(t *testing.T) {
	namespace.NeedRoot(t)

	const rounds, changes = 20, 50

	dir := t.TempDir()
	running := start(t, events.NewMounts())

	for range rounds {
		var last time.Time

		for range changes {
			require.NoError(t, unix.Mount("test", dir, "tmpfs", 0, ""))

			last = time.Now()

			require.NoError(t, unix.Unmount(dir, 0))
		}

		running.next(t, func(event health.Event) bool { return event.At.After(last) })
	}

	for i := 1; i < len(running.passed); i++ {
		require.GreaterOrEqual(t, running.passed[i].At.Sub(running.passed[i-1].At), 20*time.Millisecond, "want: events of a storm are 20 ms apart")
	}
}

// TestChangesBeforeTheConnectionCauseNoEvent: the probe that follows finds them.
func TestChangesBeforeTheConnectionCauseNoEvent(t *testing.T) {
	namespace.NeedRoot(t)
	mountedAt(t, t.TempDir(), "tmpfs", "")

	running := start(t, events.NewMounts())
	require.NoError(t, running.stop())
	require.Empty(t, running.drain(), "want: there is no event at rest")
}

func BenchmarkMounts(b *testing.B) {
	namespace.NeedRoot(b)

	dir := b.TempDir()
	running := start(b, events.NewMounts())
	latencies := newLatencies(b)

	for b.Loop() {
		latencies.measure(running, health.MountsChanged, func() {
			require.NoError(b, unix.Mount("test", dir, "tmpfs", 0, ""))
		})

		require.NoError(b, unix.Unmount(dir, 0))
		running.next(b, ofKind(health.MountsChanged))
		time.Sleep(10 * between)
	}

	latencies.report()
}
