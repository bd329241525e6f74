// Package eintr repeats system calls that a signal interrupts.
//
// Go's runtime sends signals to its threads to preempt goroutines, so any slow system call may
// return EINTR, also without a signal from outside. The package contains the loop and nothing
// about particular system calls.
package eintr

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Retry repeats the call while it returns EINTR, and returns its error.
func Retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// RetryValue is Retry for a call that also returns a value.
func RetryValue[T any](call func() (T, error)) (T, error) {
	for {
		value, err := call()
		if !errors.Is(err, unix.EINTR) {
			return value, err
		}
	}
}
