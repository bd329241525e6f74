// Package tenant acts as a user without any privilege.
package tenant

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
)

// Call runs a call on a thread of a user without any privilege, as a pod's process is one, with a
// path of a directory that this user may have no path to.
func Call(tb testing.TB, directory string, call func(path string) error) error {
	tb.Helper()

	opened, err := os.Open(directory)
	require.NoError(tb, err)

	defer opened.Close()

	result := make(chan error, 1)

	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()

		for _, step := range []struct{ number, id uintptr }{
			{unix.SYS_SETRESGID, child.UnprivilegedID}, {unix.SYS_SETRESUID, child.UnprivilegedID},
		} {
			if _, _, errno := unix.RawSyscall(step.number, step.id, step.id, step.id); errno != 0 {
				result <- errno

				return
			}
		}

		result <- call(fmt.Sprintf("/proc/self/fd/%d", opened.Fd()))
	}()

	return <-result
}

// Own lets Call write in a directory.
func Own(tb testing.TB, path string) {
	tb.Helper()
	require.NoError(tb, unix.Chown(path, child.UnprivilegedID, child.UnprivilegedID))
}
