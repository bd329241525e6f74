package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

const (
	// kernelGroup is what the kernel sends to; udev has the next one.
	kernelGroup = 1
	// ueventBytes is more than one event can have.
	ueventBytes = 8 << 10
	// ueventQueueBytes holds some thousand events, of all devices there are.
	ueventQueueBytes = 2 << 20
)

type devices struct{}

// NewDevices returns a source of health.DeviceChanged for loop devices: one was
// created, attached, resized, detached or removed, or a program triggered the event
// through sysfs. Partitions are not reported.
func NewDevices() health.Source { return devices{} }

func (devices) Name() string { return "devices" }

// Supported implements health.Source. Errors: ErrKernel, ErrPermission. In a network
// namespace owned by a user namespace the kernel sends no events, which cannot be
// detected.
func (devices) Supported() error {
	socket, err := openUevents()
	if err != nil {
		return err
	}

	return socket.Close()
}

// Run implements health.Source.
func (devices) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	socket, err := openUevents()
	if err != nil {
		return err
	}
	defer socket.Close()

	connected()

	take := func(at time.Time, data []byte) error {
		if device, ok := parseUevent(string(data)); ok {
			notify(health.Event{Kind: health.DeviceChanged, At: at, Device: device})
		}

		return nil
	}

	for {
		err := ctxread.Each(ctx, socket, ueventBytes, take)

		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			notify(health.Event{Kind: health.Lost, At: time.Now()})
		default:
			return fmt.Errorf("read the events of devices: %w", err)
		}
	}
}

func openUevents() (*os.File, error) {
	const needs = "events of devices need a kernel with CONFIG_NET"

	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, explained(err, needs)
	}

	// More than net.core.rmem_max requires CAP_NET_ADMIN; with less, events are lost
	// sooner, which is reported.
	if unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ueventQueueBytes) != nil {
		_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, ueventQueueBytes)
	}

	if err := unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(socket)

		return nil, explained(err, needs)
	}

	return os.NewFile(uintptr(socket), "uevents"), nil
}

// parseUevent returns the dev_t of the loop device that an event is about. An
// event is "change@/devices/virtual/block/loop7" and then "KEY=value" pairs, each
// ended by a NUL.
func parseUevent(event string) (uint64, bool) {
	pairs := map[string]string{}

	for field := range strings.SplitSeq(event, "\x00") {
		if key, value, ok := strings.Cut(field, "="); ok {
			pairs[key] = value
		}
	}

	// With loop.max_part partitions have the same major number, and the minor is
	// not the device's number.
	if pairs["SUBSYSTEM"] != "block" || pairs["DEVTYPE"] != "disk" || pairs["MAJOR"] != strconv.Itoa(loop.Major) {
		return 0, false
	}

	switch pairs["ACTION"] {
	case "add", "change", "remove":
	default:
		return 0, false
	}

	minor, err := strconv.ParseUint(pairs["MINOR"], 10, minorBits)
	if err != nil {
		return 0, false
	}

	return unix.Mkdev(loop.Major, uint32(minor)), true
}
