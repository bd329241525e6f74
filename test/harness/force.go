package harness

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func forceUnmount(tb testing.TB, path string) {
	tb.Helper()

	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		tb.Logf("unmount %s: %v", path, err)
	}
}

func forceDetach(tb testing.TB, loops *loop.Loops, number int) {
	tb.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	if err := loops.Detach(ctx, number); err != nil {
		tb.Logf("detach loop device %d: %v", number, err)
	}
}
