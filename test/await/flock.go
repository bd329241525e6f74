package await

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Flock takes the lock of an open file, as unix.Flock with LOCK_EX or LOCK_SH does.
func Flock(tb testing.TB, file *os.File, how int) {
	tb.Helper()

	const pause = 5 * time.Millisecond

	for end := time.Now().Add(Limit); ; time.Sleep(pause) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)

		switch {
		case err == nil:
			return
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			tb.Fatalf("lock %s: %v", file.Name(), err)
		case time.Now().After(end):
			tb.Fatalf("waited %s for the lock of %s", Limit, file.Name())
		}
	}
}
