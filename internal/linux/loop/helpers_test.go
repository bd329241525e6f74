package loop_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// first is where the tests' numbers begin: beyond every driver's and program's
// on the same machine. Each test has its own range, below.
const (
	first       = 700_000
	firstBusy   = 710_000
	firstLimits = 720_000
	firstMany   = 730_000
	firstNode   = 740_000
	firstOnce   = 745_000
	firstBench  = 750_000
	beyond      = 760_000
)

const mebibyte = 1 << 20

func needRoot(tb testing.TB) {
	tb.Helper()

	if os.Getuid() != 0 {
		tb.Skip("attaching a loop device needs root")
	}
}

func newImage(tb testing.TB, size int64) *os.File {
	tb.Helper()

	file, err := os.Create(filepath.Join(tb.TempDir(), "volume.img"))
	require.NoError(tb, err)
	require.NoError(tb, file.Truncate(size))
	tb.Cleanup(func() { file.Close() })

	return file
}

// attach attaches and sees to it that nothing stays attached.
func attach(tb testing.TB, loops *loop.Loops, image *os.File, o loop.AttachOptions) *loop.Device {
	tb.Helper()

	device, err := loops.Attach(tb.Context(), image, o)
	require.NoError(tb, err)
	tb.Cleanup(func() { drop(tb, loops, device) })

	return device
}

// drop waits for the end of the detach, which another program may delay that opens
// every device of the machine: the next test counts on the number. Only while
// another Device of it is still to be dropped it does not.
func drop(tb testing.TB, loops *loop.Loops, devices ...*loop.Device) {
	tb.Helper()

	for _, device := range devices {
		if device == nil {
			continue
		}

		_ = device.Close()

		limit := time.Minute
		if openHere(tb, device.Path) {
			limit = time.Millisecond
		}

		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := loops.Detach(ctx, device.Number)

		cancel()

		if limit == time.Minute || !errors.Is(err, loop.ErrInUse) {
			require.NoError(tb, err)
		}
	}
}

// openHere says whether this process has the file open.
func openHere(tb testing.TB, path string) bool {
	tb.Helper()

	descriptors, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(tb, err)

	return slices.ContainsFunc(descriptors, func(descriptor string) bool {
		target, err := os.Readlink(descriptor)

		return err == nil && target == path
	})
}

// left are the loop devices of tests that did not clean up.
func left() ([]loop.Attachment, error) {
	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()

	return slices.DeleteFunc(all, func(s loop.Attachment) bool {
		return s.Number < first || s.Number >= beyond
	}), err
}

func none() loop.AttachOptions { return loop.AttachOptions{PreferredNumber: -1} }

// foreignAttach is what another program does: no lock, any number.
func foreignAttach(tb testing.TB, image *os.File, number int) {
	tb.Helper()

	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	require.NoError(tb, err)

	defer control.Close()

	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number); err != nil {
		require.ErrorIs(tb, err, unix.EEXIST)
	}

	loops := loop.NewLoops(loop.LoopsOptions{})
	node, err := os.OpenFile(loops.Path(number), os.O_RDWR, 0)
	require.NoError(tb, err)

	defer node.Close()

	require.NoError(tb, unix.IoctlLoopConfigure(int(node.Fd()), &unix.LoopConfig{Fd: uint32(image.Fd()), Size: 4096}))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()

		require.NoError(tb, loops.Detach(ctx, number), "a loop device is left")
	})
}

func requireAttached(tb testing.TB, loops *loop.Loops, number int) loop.Status {
	tb.Helper()

	status, attached, err := loops.Status(number)
	require.NoError(tb, err)
	require.True(tb, attached, "loop%d should be attached", number)

	return status
}

func attachmentOf(tb testing.TB, loops *loop.Loops, number int) loop.Attachment {
	tb.Helper()

	attachment, attached, err := loops.Attachment(number)
	require.NoError(tb, err)
	require.True(tb, attached, "loop%d should be attached", number)

	return attachment
}

func requireDetached(tb testing.TB, loops *loop.Loops, number int) {
	tb.Helper()

	_, attached, err := loops.Status(number)
	require.NoError(tb, err)
	require.False(tb, attached, "loop%d should not be attached", number)
}
