package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
)

// lockForWriting locks the directory for this process and writes its name into the lock file. The
// kernel releases the lock when the process ends; the file stays, because removing a lock file
// would race with a process that opens it.
func lockForWriting(dir, owner string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("lock state: %w", err)
	}

	if err := lock(dir, file, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	flock.WriteOwner(file, owner)

	return file, nil
}

// unlock releases the lock and closes the file.
func unlock(file *os.File) error {
	return errors.Join(os.NewSyscallError("flock", flock.Unlock(file)), file.Close())
}

// lockForReading excludes writers while state is verified or dumped. A directory that was never
// opened has no lock file and needs none: nil.
func lockForReading(dir string) (*os.File, error) {
	file, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented: no lock file
	}

	if err != nil {
		return nil, fmt.Errorf("lock state: %w", err)
	}

	if err := lock(dir, file, unix.LOCK_SH); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return file, nil
}

func lock(dir string, file *os.File, how int) error {
	err := flock.Lock(file, how)

	switch {
	case err == nil:
		return checkInPlace(file)
	case errors.Is(err, unix.EWOULDBLOCK):
		return &LockedError{Dir: dir, Owner: flock.ReadOwner(file)}
	default:
		return fmt.Errorf("lock state: %w", os.NewSyscallError("flock", err))
	}
}

// checkInPlace refuses the lock of a file that was removed while it was awaited (Exclusively): another
// process may have the lock of its successor. Error: fs.ErrNotExist.
func checkInPlace(file *os.File) error {
	locked, err := file.Stat()
	if err != nil {
		return fmt.Errorf("lock state: %w", err)
	}

	inPlace, err := os.Lstat(file.Name())
	if err == nil && !os.SameFile(locked, inPlace) {
		err = fs.ErrNotExist
	}

	if err != nil {
		return fmt.Errorf("lock state: %s was removed meanwhile; start again: %w", file.Name(), err)
	}

	return nil
}

// Exclusively calls within while the directory of a state, which exists, is locked for this process, as
// by Open. within may remove the directory: a process that waits for the lock then fails. Error:
// *LockedError.
func Exclusively(dir, owner string, within func() error) error {
	file, err := lockForWriting(dir, owner)
	if err != nil {
		return err
	}

	return errors.Join(within(), file.Truncate(0), unlock(file))
}
