package kata

import (
	"errors"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrInvalidAssignment is returned for what cannot be written as an assignment: a target path
	// that is relative or too long for its directory's name, a device without an
	// absolute path, no filesystem, a group that is no number.
	ErrInvalidAssignment = errdefs.New(errdefs.ErrInvalidArgument, "not an assignment that Kata understands")
	// ErrUnsafeRoot is returned where the root of the assignments is something else
	// than a directory that only the driver's own user can change.
	ErrUnsafeRoot = errdefs.New(errdefs.ErrFailedPrecondition, "not a safe directory for direct volumes")
	// ErrNestedDirectory is returned where a directory lies in an entry: no known program
	// makes one, so it is not removed.
	ErrNestedDirectory = errdefs.New(errdefs.ErrFailedPrecondition, "there is a directory in the entry")
	// ErrNoSandbox is returned for a guest that isn't there yet: Kata has put no
	// sandbox's id beside the assignment.
	ErrNoSandbox = errors.New("no sandbox has taken the volume")
	// ErrUnimplemented is returned where runtime or guest don't know how to resize.
	ErrUnimplemented = errors.New("the guest does not implement it")
	// ErrNoAnswer is returned for anything but a valid answer in time: a hang, a
	// refused connection, a failure in the guest, garbage, impossible numbers.
	ErrNoAnswer = errors.New("no valid answer from the guest")
)
