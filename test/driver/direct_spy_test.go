package driver_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/orchestrator"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// spy knows whether anybody reads or writes a volume's device, or reads its image:
// a tool, the driver or, for a mount, the kernel.
type spy struct {
	group   int
	devices []string
	before  map[string][]string
	// disturbed is by another program of the machine, such as udev: it opens each
	// loop device that changes.
	disturbed bool
}

// watch begins to look at what is done with the volume.
func watch(t *testing.T, d *harness.Driver, claim *orchestrator.Claim) *spy {
	t.Helper()

	// No event brings a descriptor with it, which would keep the device busy.
	group, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(group)) })

	s := &spy{group: group}
	image := imageOf(d, claim.VolumeID)
	require.NoError(t, unix.FanotifyMark(group, unix.FAN_MARK_ADD, unix.FAN_ACCESS, unix.AT_FDCWD, image))

	for _, device := range devicesOf(t, d, claim.VolumeID) {
		require.NoError(t, unix.FanotifyMark(group, unix.FAN_MARK_ADD, unix.FAN_ACCESS|unix.FAN_OPEN, unix.AT_FDCWD, device.Path))
		s.devices = append(s.devices, filepath.Base(device.Path))
	}

	require.NotEmpty(t, s.devices)
	s.before = s.counters(t)

	return s
}

// counters are how many sectors of each device have been read, written and
// discarded. A flush counts as a write of none.
func (s *spy) counters(t *testing.T) map[string][]string {
	t.Helper()

	found := map[string][]string{}

	for _, device := range s.devices {
		text, err := os.ReadFile("/sys/block/" + device + "/stat")
		require.NoError(t, err)

		fields := strings.Fields(string(text))
		require.Greater(t, len(fields), 13)
		found[device] = []string{"read " + fields[2], "written " + fields[6], "discarded " + fields[13]}
	}

	return found
}

// sawNothing requires that nobody did anything since the last time.
func (s *spy) sawNothing(t *testing.T) {
	t.Helper()

	if who := s.events(t); who != nil {
		require.Fail(t, "somebody has read the volume", "%v", who)
	}

	now := s.counters(t)

	if s.disturbed {
		t.Log("another program has opened the device, whose counters tell nothing")

		s.before, s.disturbed = now, false
	}

	require.Equal(t, s.before, now)
}

// events are who has read the volume, as far as the driver may have made them.
func (s *spy) events(t *testing.T) []string {
	t.Helper()

	const header = 24

	var who []string

	for {
		buffer := make([]byte, 4096)

		size, err := unix.Read(s.group, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return who
		}

		require.NoError(t, err)

		for events := buffer[:size]; len(events) >= header; events = events[binary.NativeEndian.Uint32(events):] {
			mask, pid := binary.NativeEndian.Uint64(events[8:]), int(int32(binary.NativeEndian.Uint32(events[20:])))

			switch ours := isOurs(pid); {
			case !ours:
				s.disturbed = true
			case mask&unix.FAN_ACCESS != 0:
				who = append(who, fmt.Sprintf("process %d", pid))
			}
		}
	}
}

// isOurs says whether a process comes of this one. It is taken for that if it has
// ended: tools end at once, and what watches devices stays.
func isOurs(pid int) bool {
	for pid > 1 {
		if pid == os.Getpid() {
			return true
		}

		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return true
		}

		// After the name, which may have anything in it.
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
		pid, _ = strconv.Atoi(strings.Fields(rest)[1])
	}

	return false
}

// TestDirectSpiesSee proves that they see what they are for.
func TestDirectSpiesSee(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	device := deviceOf(t, d, claim).Path
	s := watch(t, d, claim)
	s.sawNothing(t)

	for name, do := range map[string]func(){
		"a read of the device": func() { readBlock(t, device) },
		"a read of the image":  func() { readBlock(t, imageOf(d, claim.VolumeID)) },
		"a tool":               func() { tool(t, 0, "dumpe2fs", "-h", device) },
		"a check of the image": func() { tool(t, 0, "e2fsck", "-n", imageOf(d, claim.VolumeID)) },
	} {
		do()
		require.NotEmpty(t, s.events(t), name)
	}

	// The kernel's.
	before := s.counters(t)
	boot(t, device, "ext4").shutDown()
	require.NotEqual(t, before, s.counters(t))
	require.Empty(t, s.events(t))
}
