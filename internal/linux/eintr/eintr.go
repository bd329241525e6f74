// Package eintr repeats system calls that a signal interrupts.
//
// Go's runtime sends signals to its threads to preempt goroutines, so any slow system call may
// return EINTR, also without a signal from outside. The package contains the loop, also for calls with a
// descriptor, and nothing about particular system calls.
package eintr

import (
	"errors"
	"os"

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

// Control is Retry for a call with a file's descriptor. A Close of the file by another goroutine waits for no call,
// but its number is no other file's before the call has ended. Errors: os.ErrClosed.
func Control(file *os.File, call func(descriptor int) error) error {
	connection, err := file.SyscallConn()
	if err != nil {
		return err
	}

	// Control of the connection fails only for a closed file, and not with os.ErrClosed.
	if connection.Control(func(descriptor uintptr) { err = Retry(func() error { return call(int(descriptor)) }) }) != nil {
		return os.ErrClosed
	}

	return err
}
