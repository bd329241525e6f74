package events_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// anyInstance returns a name that no other has: all containers of the machine have
// the same tracefs, and tests in them that have the same number.
func anyInstance(tb testing.TB) string {
	tb.Helper()

	return fmt.Sprintf("touchstone-test-%016x", rand.Uint64())
}

const tracefs = "/sys/kernel/tracing"

// withoutTracefs has it mounted nowhere, as in most containers.
func withoutTracefs(tb testing.TB) {
	tb.Helper()

	for unix.Unmount(tracefs, unix.MNT_DETACH) == nil {
		tb.Log("tracefs was mounted here")
	}
}

func withTracefs(tb testing.TB) {
	tb.Helper()
	withoutTracefs(tb) // a second mount would be refused
	mountedAt(tb, tracefs, "tracefs", "")
}

func tracefsMounts(tb testing.TB) int {
	tb.Helper()

	points, err := mount.List()
	require.NoError(tb, err)

	count := 0

	for _, point := range points {
		if point.FSType == "tracefs" {
			count++
		}
	}

	return count
}

func TestFailedWritesToADeviceAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		prepare func(testing.TB)
		mounts  int
	}{
		"tracefs is mounted nowhere": {withoutTracefs, 0},
		"tracefs is mounted":         {withTracefs, 1},
	} {
		t.Run(name, func(t *testing.T) {
			test.prepare(t)

			device, file := failing(t)
			source := events.NewBlockErrors(anyInstance(t))
			require.Equal(t, "block-errors", source.Name())

			// What ended can be started again.
			for range 2 {
				running := start(t, source)
				require.Equal(t, test.mounts, tracefsMounts(t), "want: tracefs is mounted as often as before")

				for block := range int64(50) {
					requireWriteFails(t, file, block+1)

					event := running.next(t, errorOf(device))
					require.Equal(t, health.Event{
						Kind: health.IOError, At: event.At, Device: deviceNumber(device),
						Sector: (block + 1) * blockSize / 512, Write: true, Errno: event.Errno,
					}, event)
					require.True(t, hasErrno(event), event.Errno)
				}

				require.NoError(t, running.stop())
				require.False(t, slices.ContainsFunc(running.drain(), errorOf(device)), "one event for each")
			}
		})
	}
}

// errorOf matches an I/O error of the device. A source reports the errors of the
// whole machine, including those of other packages' tests.
func errorOf(device *loop.Device) func(health.Event) bool {
	return func(event health.Event) bool {
		return event.Kind == health.IOError && event.Device == deviceNumber(device)
	}
}

// TestBlockErrorsOfReads reads beyond the end of a truncated image.
func TestBlockErrorsOfReads(t *testing.T) {
	namespace.NeedRoot(t)

	image := newImage(t, t.TempDir(), mebibyte)
	device := attach(t, image, loop.AttachOptions{})
	running := start(t, events.NewBlockErrors(anyInstance(t)))

	require.NoError(t, image.Truncate(blockSize))

	_, err := openDirect(t, device.Path).ReadAt(aligned(), 20*blockSize)
	if err == nil && !device.DirectIO {
		t.Skip("this kernel, as Linux 6.1, reads zeros there without direct I/O")
	}

	require.ErrorIs(t, err, unix.EIO)

	event := running.next(t, errorOf(device))
	require.Equal(t, health.Event{
		Kind: health.IOError, At: event.At, Device: deviceNumber(device), Sector: 20 * blockSize / 512, Errno: int(unix.EIO),
	}, event)
}

// TestLostErrorsOfDevicesAreReported if there are more than the kernel's buffer holds while the source does
// not read it.
func TestLostErrorsOfDevicesAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	const storm = 20_000

	_, file := failing(t)
	gate := make(chan struct{})
	running := startWith(t, events.NewBlockErrors(anyInstance(t)), func(health.Event) { <-gate })

	for range storm {
		requireWriteFails(t, file, 1)
	}

	close(gate)
	running.next(t, ofKind(health.Lost))
}

// A driver that was killed leaves its instance, as it was set up and filled.
func TestBlockErrorsTakesOver(t *testing.T) {
	namespace.NeedRoot(t)
	withTracefs(t)

	var (
		name         = anyInstance(t)
		instance     = filepath.Join(tracefs, "instances", name)
		device, file = failing(t)
		event        = filepath.Join(instance, "events", "block", "block_rq_error")
	)

	require.NoError(t, os.Mkdir(instance, 0o700))
	t.Cleanup(func() { _ = os.Remove(instance) })
	require.NoError(t, os.WriteFile(filepath.Join(event, "enable"), []byte("1"), 0o600))
	requireWriteFails(t, file, 1)

	left, err := os.ReadFile(filepath.Join(instance, "trace"))
	require.NoError(t, err)
	require.Contains(t, string(left), "block_rq_error: 7,")
	require.NoError(t, os.WriteFile(filepath.Join(instance, "tracing_on"), []byte("0"), 0o600))

	running := start(t, events.NewBlockErrors(name))
	requireWriteFails(t, file, 2)
	require.Equal(t, int64(2*blockSize/512), running.next(t, errorOf(device)).Sector, "want: the event has the sector of the failed write")

	require.NoError(t, running.stop())
	require.NoDirExists(t, instance)
}

// TestBlockErrorsSweeps the trace instances of killed drivers, but none that is another program's,
// in use or new.
func TestBlockErrorsSweeps(t *testing.T) {
	namespace.NeedRoot(t)
	withTracefs(t)

	var (
		// Drivers of other tests run beside, whose instances are "touchstone-" and more,
		// and sweep, too.
		kind  = "sweep-" + anyInstance(t)
		own   = kind + "-own"
		other = func(name string, age time.Duration) string {
			dir := filepath.Join(tracefs, "instances", kind+name)
			require.NoError(t, os.Mkdir(dir, 0o700))
			t.Cleanup(func() { _ = os.Remove(dir) })
			require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-age)))

			return dir
		}
		killed, fresh = other("-killed", time.Hour), other("-fresh", 0)
		foreign       = other("", time.Hour)
		inUse         = start(t, events.NewBlockErrors(kind+"-active"))
		usedDir       = filepath.Join(tracefs, "instances", kind+"-active")
	)

	require.NoError(t, os.Chtimes(usedDir, time.Time{}, time.Now().Add(-time.Hour)))

	running := start(t, events.NewBlockErrors(own))
	require.Eventually(t, func() bool {
		_, err := os.Stat(killed)

		return os.IsNotExist(err)
	}, soon, time.Millisecond, "want: the instance of the killed driver is removed")
	require.NoError(t, running.stop())

	for _, dir := range []string{fresh, foreign, usedDir} {
		require.DirExists(t, dir)
	}

	device, file := failing(t)
	requireWriteFails(t, file, 1)
	inUse.next(t, errorOf(device))
}

func TestATraceInstanceInUseIsRefused(t *testing.T) {
	namespace.NeedRoot(t)

	device, file := failing(t)
	name := anyInstance(t)
	running := start(t, events.NewBlockErrors(name))

	second := events.NewBlockErrors(name)
	err := second.Run(t.Context(), func() { t.Error("the second has connected too") }, func(health.Event) {})
	require.ErrorIs(t, err, events.ErrInUse)

	// The first goes on, and others have others.
	other := start(t, events.NewBlockErrors(name+"-other"))

	requireWriteFails(t, file, 1)
	running.next(t, errorOf(device))
	other.next(t, errorOf(device))
}

func TestTraceLinesAreParsed(t *testing.T) {
	lost := health.Event{Kind: health.Lost}

	for _, test := range []struct {
		line string
		want health.Event
		ok   bool
	}{
		{
			"block_rq_error: 7,0 RS () 80 + 8 be,0,4 [-5]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 0), Sector: 80, Errno: 5},
			true,
		},
		{
			"block_rq_error: 7,1024 W () 2097144 + 8 none,0,0 [-28]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 1024), Sector: 2097144, Write: true, Errno: 28},
			true,
		},
		{
			"block_rq_error: 7,1048575 WSM () 8 + 8 [-5]", // before Linux 6.11
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 1048575), Sector: 8, Write: true, Errno: 5}, true,
		},
		{
			"block_rq_error: 7,3 FF () 0 + 0 be,0,4 [-5]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 3), Write: true, Errno: 5},
			true,
		},
		{
			"block_rq_error: 7,3 FWS () 24 + 8 be,0,4 [-5]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 3), Sector: 24, Write: true, Errno: 5},
			true,
		},
		{
			"block_rq_error: 7,3 DS () 4096 + 4096 be,0,4 [-5]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 3), Sector: 4096, Write: true, Errno: 5},
			true,
		},
		{
			"block_rq_error: 7,3 RA (2a 00 00 00) 6442450936 + 2560 rt,1,7 [-121]",
			health.Event{Kind: health.IOError, Device: unix.Mkdev(7, 3), Sector: 6442450936, Errno: 121},
			true,
		},
		{"CPU:1 [LOST 42 EVENTS]", lost, true},
		{"CPU:0 [LOST EVENTS]", lost, true},
		// Something failed, and this kernel says it in other words.
		{"block_rq_error: loop7: sector 80 failed", lost, true},
		{"block_rq_error: 7,0 RS () eighty + 8 be,0,4 [-5]", lost, true},
		{"block_rq_error: 7,0 RS () 80 + 8 be,0,4", lost, true},
		{"block_rq_error: 7,0 RS () 80 + 8", lost, true},
		{"block_rq_error: ", lost, true},
		{"##### CPU 1 buffer started ####", health.Event{}, false},
		{"# tracer: nop", health.Event{}, false},
		{
			"xfs_force_shutdown: dev 7:1024 tag none flags force_umount|log_io file fs/xfs/xfs_fsops.c line_num 485",
			health.Event{Kind: health.FilesystemShutdown, Device: unix.Mkdev(7, 1024)},
			true,
		},
		{"ext4_shutdown: dev 7,1048575 flags 2", health.Event{Kind: health.FilesystemShutdown, Device: unix.Mkdev(7, 1048575)}, true},
		{"ext4_shutdown: flags 2", lost, true},
		{"xfs_force_shutdown: dev 7", lost, true},
		{"", health.Event{}, false},
	} {
		t.Run(test.line, func(t *testing.T) {
			event, ok := events.ParseTraceLine(test.line)
			require.Equal(t, test.ok, ok, "want: only a line of a block error is parsed")
			require.Equal(t, test.want, event)
		})
	}
}

func BenchmarkTraceLine(b *testing.B) {
	b.ReportAllocs()

	for b.Loop() {
		_, ok := events.ParseTraceLine("block_rq_error: 7,1024 RS () 80 + 8 be,0,4 [-5]")
		require.True(b, ok, "want: the line is parsed")
	}
}

// Latency from before the failing call to the event.
func BenchmarkBlockErrors(b *testing.B) {
	namespace.NeedRoot(b)

	_, file := failing(b)
	running := start(b, events.NewBlockErrors(anyInstance(b)))
	latencies := newLatencies(b)

	for b.Loop() {
		latencies.measure(running, health.IOError, func() { requireWriteFails(b, file, 1) })
	}

	latencies.report()
}
