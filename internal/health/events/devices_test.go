package events_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestChangesOfDevicesAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	var (
		loops  = loop.NewLoops(loop.LoopsOptions{})
		image  = newImage(t, t.TempDir(), mebibyte)
		source = events.NewDevices()
	)

	require.Equal(t, "devices", source.Name())

	// What ended can be started again.
	for range 2 {
		running := start(t, source)
		device := attach(t, image, loop.AttachOptions{})
		ofIt := func(event health.Event) bool {
			return event == health.Event{Kind: health.DeviceChanged, At: event.At, Device: deviceNumber(device)}
		}

		running.next(t, ofIt)
		running.drain()

		require.NoError(t, image.Truncate(2*mebibyte))

		_, err := loops.Resize(device.Number)
		require.NoError(t, err)
		running.next(t, ofIt)
		running.drain()

		require.NoError(t, device.Close())
		require.NoError(t, loops.Detach(t.Context(), device.Number))
		running.next(t, ofIt)

		require.NoError(t, running.stop())
	}
}

func TestLostEventsOfDevicesAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	const storm = 20_000

	var (
		gate    = make(chan struct{})
		running = startWith(t, events.NewDevices(), func(health.Event) { <-gate })
		device  = attach(t, newImage(t, t.TempDir(), mebibyte), loop.AttachOptions{})
	)

	ask, err := os.OpenFile(fmt.Sprintf("/sys/block/loop%d/uevent", device.Number), os.O_WRONLY, 0)
	require.NoError(t, err)

	defer ask.Close()

	for range storm {
		_, err := ask.WriteString("change")
		require.NoError(t, err)
	}

	close(gate)
	running.next(t, ofKind(health.Lost))

	// It goes on after that.
	running.next(t, func(event health.Event) bool { return event.Device == deviceNumber(device) })
	running.drain()

	_, err = ask.WriteString("change")
	require.NoError(t, err)
	running.next(t, func(event health.Event) bool { return event.Device == deviceNumber(device) })
}

func TestUeventsAreParsed(t *testing.T) {
	event := func(action string, pairs ...string) string {
		return strings.Join(append([]string{action + "@/devices/virtual/block/loop7", "ACTION=" + action}, pairs...), "\x00") + "\x00"
	}
	disk := []string{"SUBSYSTEM=block", "MAJOR=7", "MINOR=7", "DEVNAME=loop7", "DEVTYPE=disk", "DISKSEQ=12", "SEQNUM=4711"}

	for name, test := range map[string]struct {
		event string
		want  uint64
	}{
		"made":            {event("add", disk...), unix.Mkdev(7, 7)},
		"changed":         {event("change", disk...), unix.Mkdev(7, 7)},
		"resized":         {event("change", append([]string{"RESIZE=1"}, disk...)...), unix.Mkdev(7, 7)},
		"removed":         {event("remove", disk...), unix.Mkdev(7, 7)},
		"high number":     {event("change", "SUBSYSTEM=block", "MAJOR=7", "MINOR=1048575", "DEVTYPE=disk"), unix.Mkdev(7, 1048575)},
		"bound":           {event("bind", disk...), 0},
		"partition":       {event("add", "SUBSYSTEM=block", "MAJOR=7", "MINOR=8", "DEVNAME=loop7p1", "DEVTYPE=partition"), 0},
		"other device":    {event("change", "SUBSYSTEM=block", "MAJOR=253", "MINOR=7", "DEVTYPE=disk"), 0},
		"other subsystem": {event("change", "SUBSYSTEM=bdi", "MAJOR=7", "MINOR=7", "DEVTYPE=disk"), 0},
		"no number":       {event("change", "SUBSYSTEM=block", "MAJOR=7", "MINOR=", "DEVTYPE=disk"), 0},
		"udev's":          {"libudev\x00\xfe\xed\xca\xfe", 0},
		"empty":           {"", 0},
	} {
		t.Run(name, func(t *testing.T) {
			device, ok := events.ParseUevent(test.event)
			require.Equal(t, test.want, device, "want: the uevent has the number of the loop device")
			require.Equal(t, test.want != 0, ok, "want: only a uevent of a loop device is parsed")
		})
	}
}

func BenchmarkDevices(b *testing.B) {
	namespace.NeedRoot(b)

	running := start(b, events.NewDevices())
	device := attach(b, newImage(b, b.TempDir(), mebibyte), loop.AttachOptions{})
	latencies := newLatencies(b)

	ask, err := os.OpenFile(fmt.Sprintf("/sys/block/loop%d/uevent", device.Number), os.O_WRONLY, 0)
	require.NoError(b, err)

	defer ask.Close()

	running.drain()

	for b.Loop() {
		latencies.measure(running, health.DeviceChanged, func() {
			_, err := ask.WriteString("change")
			require.NoError(b, err)
		})
	}

	latencies.report()
}
