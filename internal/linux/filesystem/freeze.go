package filesystem

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrFrozen is returned by Freeze and CheckThawed of what is frozen already.
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
func Freeze(mountpoint *os.File) (err error) {
	defer errdefs.Wrapf(&err, "freeze the filesystem at %s: FIFREEZE", mountpoint.Name())

	err = unix.IoctlSetInt(int(mountpoint.Fd()), iocFreeze, 0)
	if errors.Is(err, unix.EBUSY) {
		return alreadyFrozen(err)
	}

	return err
}

func alreadyFrozen(err error) error {
	return fmt.Errorf("%w; if no other program is taking a snapshot, thaw it (fsfreeze --unfreeze): %w", ErrFrozen, err)
}

// CheckThawed returns ErrFrozen if writers of the filesystem would block, by a reconfiguration that
// changes nothing: the kernel refuses it while the filesystem is frozen. A freeze would say so, too,
// but a btrfs whose thaw is interrupted by a SIGKILL is read-only from then on. The file is the root
// of the mount.
func CheckThawed(root *os.File) error {
	fd, err := unix.Fspick(int(root.Fd()), "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("see whether the filesystem at %s is frozen: fspick: %w", root.Name(), err)
	}

	err = errors.Join(unix.FsconfigReconfigure(fd), unix.Close(fd))
	if errors.Is(err, unix.EBUSY) {
		err = alreadyFrozen(err)
	}

	if err != nil {
		return fmt.Errorf("see whether the filesystem at %s is frozen: reconfigure: %w", root.Name(), err)
	}

	return nil
}

// Thaw ends what Freeze began. Error: ErrNotFrozen, or the kernel's.
func Thaw(mountpoint *os.File) (err error) {
	defer errdefs.Wrapf(&err, "thaw the filesystem at %s: FITHAW", mountpoint.Name())

	err = unix.IoctlSetInt(int(mountpoint.Fd()), iocThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ErrNotFrozen, err)
	}

	return err
}
