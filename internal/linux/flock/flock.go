// Package flock locks files against other processes with flock(2).
//
// The kernel releases a lock when the last descriptor of the open file is closed. A process that
// is forking a child when it is killed leaves copies of its descriptors in the child until the
// child's exec, so a lock may outlive its process for some milliseconds. Lock therefore retries,
// so that a driver that is restarted at once gets its locks, and Unlock releases a lock
// explicitly instead of leaving it to close(2).
//
// The package contains how long to wait for a lock. Its callers decide what is locked and how a
// conflict is reported.
package flock

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

// attempts add up to two seconds, and to at most two more while this process forks: far longer than a fork takes
// on an overloaded machine, and short enough to report a real conflict.
const attempts = 67

// Lock locks the file; how is unix.LOCK_EX or unix.LOCK_SH. It retries a lock that another process
// holds for two to four seconds. Errors: unix.EWOULDBLOCK if it is held still, or flock's.
//
//nolint:contextcheck,nolintlint // it retries for four seconds at most
func Lock(file *os.File, how int) error {
	return fork.RetryWhile(context.Background(), unix.EWOULDBLOCK, attempts, func() error { return TryLock(file, how) })
}

// TryLock locks the file without waiting; how is unix.LOCK_EX or unix.LOCK_SH. Errors:
// unix.EWOULDBLOCK if another process holds the lock, or flock's.
func TryLock(file *os.File, how int) error {
	return eintr.Retry(func() error { return unix.Flock(int(file.Fd()), how|unix.LOCK_NB) })
}

// Unlock releases the lock at once, also if a child that is being forked has a copy of the
// descriptor.
func Unlock(file *os.File) error {
	return eintr.Retry(func() error { return unix.Flock(int(file.Fd()), unix.LOCK_UN) })
}

// Unsupported reports whether an error of Lock or TryLock means that the file's filesystem has no
// locks.
func Unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOSYS)
}
