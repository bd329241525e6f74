package child

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
)

// CloseWhileForked closes a file of which a child that is just being forked has a
// copy, as of all; the child is through after a while.
func CloseWhileForked(tb testing.TB, file *os.File, while time.Duration) {
	tb.Helper()

	copied, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(tb, err)
	syscall.ForkLock.Lock()

	through := make(chan struct{})

	tb.Cleanup(func() { await.Receive(tb, through, "the end of the fork") })
	time.AfterFunc(while, func() {
		defer close(through)
		defer syscall.ForkLock.Unlock()

		_ = unix.Close(copied)
	})
	require.NoError(tb, file.Close())
}
