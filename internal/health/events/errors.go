package events

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

var (
	// ErrKernel is returned where the kernel is too old, or built without it.
	ErrKernel = errors.New("the kernel does not offer it")
	// ErrPermission is returned where the kernel has it, and not for this process.
	ErrPermission = errors.New("this process may not have it")
	// ErrInUse is returned where another running process has the same tracing
	// instance.
	ErrInUse = errors.New("another process uses it")
	// ErrNotConnected is returned by Mark while the source is not running: mark again
	// at the next probe; a relist follows each connection.
	ErrNotConnected = errors.New("the source is not connected")
	// ErrGone is returned by Run when what it watches is there no longer.
	ErrGone = errors.New("it is there no longer")
)

// explained classifies a kernel error as ErrKernel or ErrPermission. Needs is the
// missing requirement.
func explained(err error, needs string) error {
	kind := ErrKernel
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		kind = ErrPermission
	}

	return fmt.Errorf("%w: %s: %w", kind, needs, err)
}
