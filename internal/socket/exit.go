package socket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// exitTimeout bounds the wait for a process that is exiting.
	exitTimeout = 5 * time.Second
	exitPause   = 50 * time.Millisecond
)

// ended reports whether the process that created a socket has ended. It waits for an
// exiting process: until all its threads have ended, its sockets accept connections
// and kill(pid, 0) succeeds. A forked child may keep the socket open until its exec.
// For a live process it returns immediately.
func ended(ctx context.Context, pid int32) bool {
	// For an unknown pid, 0, pidfd_open returns EINVAL: the process counts as alive.
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}

	defer func() { _ = unix.Close(fd) }()

	if exited(fd) {
		return true
	}

	if !exiting(pid) {
		return false
	}

	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()

	for ctx.Err() == nil {
		if exited(fd) {
			return true
		}
	}

	return false
}

// exited waits for exitPause. A pidfd is readable once all threads have exited, also
// before the parent has waited for the process.
func exited(pidfd int) bool {
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(exitPause.Milliseconds()))

	return err == nil && ready > 0
}

// exiting reports whether the process can only end: SIGKILL is pending for it, or
// its main thread has exited.
func exiting(pid int32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true // it was there a moment ago
	}

	return isExitingStatus(string(text))
}

// isExitingStatus is exiting for the text of /proc/PID/status.
func isExitingStatus(status string) bool {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")

		switch name {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			if pending, err := strconv.ParseUint(value, 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}

	return false
}
