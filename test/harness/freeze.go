package harness

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/await"
)

// Thaw thaws the filesystem that is mounted at the path.
func Thaw(path string) error { return AtRoot(path, filesystem.Thaw) }

// RequireFrozen requires that a filesystem is frozen: it can't be frozen once more.
func RequireFrozen(t *testing.T, path string) {
	t.Helper()
	require.ErrorIs(t, AtRoot(path, filesystem.Freeze), filesystem.ErrFrozen)
}

// RequireThawed requires that a filesystem is not frozen: it can't be thawed.
func RequireThawed(t *testing.T, path string) {
	t.Helper()
	require.ErrorIs(t, Thaw(path), filesystem.ErrNotFrozen)
}

// AtRoot calls do with the open root directory of a mount.
func AtRoot(path string, do func(*os.File) error) error {
	root, err := os.Open(path)
	if err != nil {
		return err
	}
	defer root.Close()

	return do(root)
}

// Syncfs writes back the filesystem of a path, and no other one: tests run beside each other.
func Syncfs(path string) error {
	return AtRoot(path, func(root *os.File) error { return unix.Syncfs(int(root.Fd())) })
}

// HeldWrite is a write that a frozen filesystem keeps waiting.
type HeldWrite struct {
	thread atomic.Int64
	done   chan error
}

// StartHeldWrite begins to write a file and returns when the kernel has it wait.
func StartHeldWrite(t *testing.T, path string) *HeldWrite {
	t.Helper()

	w := &HeldWrite{done: make(chan error, 1)}

	go func() {
		runtime.LockOSThread()
		w.thread.Store(int64(unix.Gettid()))

		w.done <- os.WriteFile(path, []byte("written"), 0o600)
	}()

	require.Eventually(t, w.waits, await.Limit, time.Millisecond, "the write does not wait")

	return w
}

// waits says whether the thread sleeps without being interruptible.
func (w *HeldWrite) waits() bool {
	stat, err := os.ReadFile("/proc/self/task/" + strconv.FormatInt(w.thread.Load(), 10) + "/stat")
	if err != nil {
		return false
	}

	_, after, _ := strings.Cut(string(stat), ") ")

	return strings.HasPrefix(after, "D")
}

// Pending says whether the write has not returned.
func (w *HeldWrite) Pending() bool { return len(w.done) == 0 }

// RequireDone waits until the write has succeeded.
func (w *HeldWrite) RequireDone(t *testing.T) {
	t.Helper()

	select {
	case err := <-w.done:
		require.NoError(t, err)
	case <-time.After(await.Limit):
		require.FailNow(t, "the write still waits")
	}
}
