package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

// inUseMessages are parts of what e2fsck and btrfs print, beside an exit code that damage has too, for
// a device that another program has opened exclusively.
var inUseMessages = []string{"is in use.", "is mounted.", "Device or resource busy"}

// runCheck runs the tool of a check. It runs it again while the tool finds the device in use: another
// program may claim a device that inspectForCheck found unused for the moment of an open, as udev
// does, or of a LOOP_CONFIGURE that tries its number. Error: ErrInUse, which is no verdict.
func runCheck(ctx context.Context, run Runner, path string, command Command) (result Result, err error) {
	err = fork.RetryWhile(ctx, ErrInUse, busyAttempts, func() error {
		result, err = run.Run(ctx, command)
		if err == nil && result.ExitCode != 0 && containsAny(result.Output, inUseMessages) {
			err = fmt.Errorf("%w: %s; try again when no other program uses the device", ErrInUse, lastLines(result.Output))
		}

		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("check %s: %w", path, err)
	}

	return result, nil
}

// IsClaimed reports whether a filesystem, or another program, has claimed the device for itself. A mounted
// filesystem has, and a frozen one after its last unmount.
func IsClaimed(device string) (bool, error) {
	descriptor, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)

	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("find out whether %s is claimed: %w", device, err)
	default:
		return false, unix.Close(descriptor)
	}
}

// containsAny reports whether a tool has printed one of the messages.
func containsAny(output string, messages []string) bool {
	return slices.ContainsFunc(messages, func(message string) bool { return strings.Contains(output, message) })
}
