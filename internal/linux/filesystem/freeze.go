package filesystem

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrFrozen is returned by Freeze of what is frozen already.
	ErrFrozen = errdefs.New(errdefs.ErrFailedPrecondition, "filesystem is frozen already")
	// ErrNotFrozen is returned by Thaw of a filesystem that is not frozen, perhaps because another
	// program has thawed it.
	ErrNotFrozen = errdefs.New(errdefs.ErrAborted, "filesystem is not frozen")
)

const (
	// FIFREEZE is _IOWR('X', 119, int).
	iocFreeze = 0xc0045877
	// FITHAW is _IOWR('X', 120, int).
	iocThaw = 0xc0045878
)

// Sync writes out what the filesystem mounted at the open directory has in
// memory, so that a Freeze after it has little to do. The error is the first
// failure to write since the directory was opened; a filesystem that has shut
// itself down gives EIO.
func Sync(mountpoint *os.File) error {
	if err := unix.Syncfs(int(mountpoint.Fd())); err != nil {
		return fmt.Errorf("sync the filesystem at %s: %w", mountpoint.Name(), err)
	}

	return nil
}

// Freeze brings the filesystem mounted at the directory, which must be open for
// reading, to rest: it writes all out, and writers block until Thaw, even past the end of this
// process. Error: ErrFrozen, or the kernel's.
func Freeze(mountpoint *os.File) error {
	err := unix.IoctlSetInt(int(mountpoint.Fd()), iocFreeze, 0)

	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("%w; if no other program is taking a snapshot, thaw it (fsfreeze --unfreeze): %w", ErrFrozen, err)
	}

	return fmt.Errorf("freeze the filesystem at %s: FIFREEZE: %w", mountpoint.Name(), err)
}

// Thaw ends what Freeze began. Error: ErrNotFrozen, or the kernel's.
func Thaw(mountpoint *os.File) error {
	err := unix.IoctlSetInt(int(mountpoint.Fd()), iocThaw, 0)

	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("%w: %w", ErrNotFrozen, err)
	}

	return fmt.Errorf("thaw the filesystem at %s: FITHAW: %w", mountpoint.Name(), err)
}
