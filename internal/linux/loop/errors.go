package loop

import (
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrNotImage is returned for an image that is not a regular file.
	ErrNotImage = errors.New("not a regular file")
	// ErrImageLocked is returned for an image that something holds which is no
	// loop device of this machine: another node, or a program at work on it.
	ErrImageLocked = errdefs.New(errdefs.ErrFailedPrecondition, "image is locked")
	// ErrNoLocks is returned for an image on a filesystem without file locks, where
	// nothing would keep another node from attaching it too.
	ErrNoLocks = errdefs.New(errdefs.ErrFailedPrecondition, "the filesystem of the image has no file locks (flock); "+
		"put the pool on one that has, or mount it with locks")
	// ErrInUse is returned where a detach did not complete in time because the
	// device is still mounted or open; it completes by itself at the last close.
	ErrInUse = errors.New("loop device is in use")
	// ErrNotAttached is returned where a number has no image.
	ErrNotAttached = errdefs.New(errdefs.ErrFailedPrecondition, "loop device is not attached")
	// ErrBackingUnresponsive is returned where an image is attached, but its filesystem does not
	// answer the kernel's LOOP_GET_STATUS64 for it.
	ErrBackingUnresponsive = errors.New("the filesystem of the attached image does not answer")
	// ErrNoNumber is returned when every number of the range is taken.
	ErrNoNumber = errdefs.New(errdefs.ErrResourceExhausted, "no loop device number is free")
)

const (
	opOpen   = "open"
	opDetach = "detach"
	opRemove = "remove"
)

// numberError names the loop device on which the operation failed. It returns nil for nil.
func numberError(op string, number int, err error) error {
	if err != nil {
		return fmt.Errorf("%s loop device %d: %w", op, number, err)
	}

	return nil
}
