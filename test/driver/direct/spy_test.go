package direct_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// spy records whether any process reads or writes a volume's device, or reads its image:
// a tool, the driver or, for a mount, the kernel.
type spy struct {
	// image and devices report every access by any process of the
	// machine, and here every read beneath the same mount, which no other mount
	// namespace has.
	image, devices, here *watched

	numbers []string
	before  map[string][]string
	// disturbed is by another program of the machine, such as udev: it opens each
	// loop device that changes.
	disturbed bool
}

// watch begins to record accesses to the volume.
func watch(t *testing.T, d *harness.Driver, claim *csiclient.Publication) *spy {
	t.Helper()

	s := &spy{image: newWatched(t), devices: newWatched(t), here: newWatched(t)}
	s.image.mark(t, unix.FAN_MARK_ADD, unix.FAN_ACCESS, harness.ImageOf(d, claim.VolumeID))

	for _, device := range harness.DevicesOf(t, d, claim.VolumeID) {
		s.devices.mark(t, unix.FAN_MARK_ADD, unix.FAN_ACCESS|unix.FAN_OPEN, device.Path)
		s.here.mark(t, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_ACCESS, device.Path)
		s.numbers = append(s.numbers, filepath.Base(device.Path))
	}

	require.NotEmpty(t, s.numbers, "want: the watch has a device")
	s.before = s.counters(t)

	return s
}

// watched is a fanotify group that reports files by their handles. No event brings
// a descriptor with it, which would keep a device busy.
type watched struct {
	group   int
	handles []string
}

func newWatched(t *testing.T) *watched {
	t.Helper()

	const flags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_UNLIMITED_QUEUE | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

	group, err := unix.FanotifyInit(flags, unix.O_RDONLY)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(group)) })

	return &watched{group: group}
}

func (w *watched) mark(t *testing.T, how uint, mask uint64, path string) {
	t.Helper()
	require.NoError(t, unix.FanotifyMark(w.group, how, mask, unix.AT_FDCWD, path))

	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	require.NoError(t, err)

	w.handles = append(w.handles, string(handle.Bytes()))
}

// done is what a process has done with a file that was marked.
type done struct {
	mask uint64
	pid  int
}

// take returns what was done with these very files since the last time.
func (w *watched) take(t *testing.T) []done {
	t.Helper()

	const (
		header = 24
		// In the information that follows it, behind its own header and the
		// filesystem's id: the handle's length and, after the type, its bytes.
		length, handle = header + 12, header + 20
	)

	var all []done

	for {
		buffer := make([]byte, 4096)

		size, err := unix.Read(w.group, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}

		require.NoError(t, err)

		for events := buffer[:size]; len(events) >= handle; events = events[binary.NativeEndian.Uint32(events):] {
			file := events[handle:][:binary.NativeEndian.Uint32(events[length:])]
			if slices.Contains(w.handles, string(file)) {
				all = append(all, done{
					mask: binary.NativeEndian.Uint64(events[8:]), pid: int(int32(binary.NativeEndian.Uint32(events[20:]))),
				})
			}
		}
	}
}

// counters are how many sectors of each device have been read, written and
// discarded. A flush counts as a write of none.
func (s *spy) counters(t *testing.T) map[string][]string {
	t.Helper()

	found := map[string][]string{}

	for _, device := range s.numbers {
		text, err := os.ReadFile("/sys/block/" + device + "/stat")
		require.NoError(t, err)

		fields := strings.Fields(string(text))
		require.Greater(t, len(fields), 13, "want: the device has its counters")
		found[device] = []string{"read " + fields[2], "written " + fields[6], "discarded " + fields[13]}
	}

	return found
}

// sawNothing requires that there was no access since the last time.
func (s *spy) sawNothing(t *testing.T) {
	t.Helper()

	// First: their process has opened the device before.
	now := s.counters(t)

	if who := s.events(t); who != nil {
		require.Fail(t, "a process has read the volume", "%v", who)
	}

	if s.disturbed {
		t.Log("another program has opened the device, whose counters prove nothing")

		s.before, s.disturbed = now, false
	}

	require.Equal(t, s.before, now)
}

// events are who has read the volume, as far as the driver may have made them.
func (s *spy) events(t *testing.T) []string {
	t.Helper()

	var who []string

	for _, each := range s.image.take(t) {
		if ours, ended := lineage(each.pid); ours || ended {
			who = append(who, fmt.Sprintf("process %d", each.pid))
		}
	}

	onDevices, here := s.devices.take(t), s.here.take(t)

	for _, each := range onDevices {
		ours, ended := lineage(each.pid)
		// Tools end at once. So do other programs, which read all devices of the
		// machine, but not from here.
		ours = ours || ended && slices.ContainsFunc(here, func(d done) bool { return d.pid == each.pid })

		switch {
		case !ours:
			s.disturbed = true
		case each.mask&unix.FAN_ACCESS != 0:
			who = append(who, fmt.Sprintf("process %d", each.pid))
		}
	}

	return who
}

// lineage says whether a process comes of this one, or has ended, when its parent is unknown
// by then.
func lineage(pid int) (ours, ended bool) {
	for pid > 1 {
		if pid == os.Getpid() {
			return true, false
		}

		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false, true
		}

		// After the name, which may have anything in it.
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
		pid, _ = strconv.Atoi(strings.Fields(rest)[1])
	}

	return false, false
}

// TestSpiesDetectAccess of each kind.
func TestSpiesDetectAccess(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	device := deviceOf(t, d, claim).Path
	s := watch(t, d, claim)
	s.sawNothing(t)

	for name, do := range map[string]func(){
		"a read of the device": func() { harness.ReadBlock(t, device) },
		"a read of the image":  func() { harness.ReadBlock(t, harness.ImageOf(d, claim.VolumeID)) },
		"a tool":               func() { harness.RunTool(t, 0, "dumpe2fs", "-h", device) },
		"a check of the image": func() { harness.RunTool(t, 0, "e2fsck", "-n", harness.ImageOf(d, claim.VolumeID)) },
	} {
		do()
		require.NotEmpty(t, s.events(t), name)
	}

	// The kernel's.
	before := s.counters(t)
	boot(t, device, "ext4").shutDown()
	require.NotEqual(t, before, s.counters(t), "want: the guest's reads are counted")
	require.Empty(t, s.events(t), "want: the guest's reads have no event on the host")
}

// TestSpiesIgnoreOtherPrograms: a program of another mount namespace reads the device and ends, as
// what udev starts does.
func TestSpiesIgnoreOtherPrograms(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	device := deviceOf(t, d, claim).Path
	s := watch(t, d, claim)

	stranger := child.Command(t, "dd", "if="+device, "of=/dev/null", "iflag=direct", "bs=4096", "count=1")
	stranger.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	before := s.counters(t)
	output, err := stranger.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.NotEqual(t, before, s.counters(t), "want: another program's reads are counted")
	s.sawNothing(t)
	require.False(t, s.disturbed, "want: no other process of the machine disturbed the watch")

	harness.RunTool(t, 0, "dd", "if="+device, "of=/dev/null", "bs=4096", "count=1")
	require.NotEmpty(t, s.events(t), "want: another program's reads have an event")
}
