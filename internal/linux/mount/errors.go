package mount

import (
	"errors"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Besides these, errors wrap what the kernel said, so that errors.Is works with
// fs.ErrNotExist, fs.ErrPermission and the errno itself.
var (
	// ErrNotAbsolute is returned for a path that does not start at the root; an
	// empty one too.
	ErrNotAbsolute = errdefs.New(errdefs.ErrInvalidArgument, "not an absolute path")
	// ErrInvalidPath is returned for a path that no orchestrator has a reason to send:
	// with "." or ".." in it, with a NUL, or longer than the kernel takes.
	ErrInvalidPath = errdefs.New(errdefs.ErrInvalidArgument, "not a plain path")
	// ErrOutsideAllowed is returned for a path beneath none of the allowed directories.
	ErrOutsideAllowed = errdefs.New(errdefs.ErrInvalidArgument, "outside the allowed directories")
	// ErrSymlink is returned where a symlink stands in a path, or at its end.
	ErrSymlink = errdefs.New(errdefs.ErrInvalidArgument, "a symlink is not followed")
	// ErrWrongType is returned where something of another type exists: a
	// file instead of a directory, a socket instead of a file.
	ErrWrongType = errdefs.New(errdefs.ErrFailedPrecondition, "of the wrong type")
	// ErrNotEmpty is returned by Remove for what has content.
	ErrNotEmpty = errdefs.New(errdefs.ErrFailedPrecondition, "not empty")
	// ErrBusy is returned where something still uses a mount or a device.
	ErrBusy = errdefs.New(errdefs.ErrFailedPrecondition, "in use")
	// ErrMountFlag is returned for a mount flag that is refused, here or by the
	// filesystem. Its message has the flag's name and never its value.
	ErrMountFlag = errdefs.New(errdefs.ErrInvalidArgument, "bad mount flag")
	// ErrCorrupted is returned by Mount where the filesystem has damage that the kernel finds, also
	// where a check has trusted that it is marked clean.
	ErrCorrupted = errors.New("the filesystem is corrupted")
	// ErrAttached is returned for a Detached that was attached or closed already.
	ErrAttached = errors.New("the detached mount is used up")
	// ErrKernelUnsupported is returned where the kernel is too old or a sandbox forbids the
	// call.
	ErrKernelUnsupported = errors.New("the kernel does not offer it")
)
