// Package flock locks files against other processes, with flock(2).
//
// A lock ends with the process that has it, but for a child that it was just
// forking, for a tool, when it was killed: that has copies of all descriptors until
// its exec. Whoever starts again at once must not be refused for that.
//
// What may enter: how long to wait for a lock. What is locked, and what is said of
// who has it, is its user's.
package flock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// attempts and firstPause make two seconds: far more than a fork takes on a
	// machine that has too much to do, and not too long for who is refused.
	attempts   = 12
	firstPause = time.Millisecond
)

// Lock locks the file, how being unix.LOCK_EX or unix.LOCK_SH. It waits for about
// two seconds. Errors: unix.EWOULDBLOCK when another has it still, or flock's.
func Lock(file *os.File, how int) error {
	pause := firstPause

	for attempt := 1; ; {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)

		switch {
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK) || attempt == attempts:
			return err //nolint:wrapcheck // the caller knows what is locked
		default:
			time.Sleep(pause)

			pause *= 2
			attempt++
		}
	}
}
