package embedded

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Reflinks says whether files in a directory can share bytes, by trying it with two
// that never get a name.
func Reflinks(directory string) (bool, error) {
	source, err := CreateUnnamed(directory)
	if err != nil {
		return false, err
	}
	defer source.Close()

	target, err := CreateUnnamed(directory)
	if err != nil {
		return false, err
	}
	defer target.Close()

	// A hole: the answer must not need space.
	if err := source.Truncate(4096); err != nil {
		return false, err
	}

	err = unix.IoctlFileClone(int(target.Fd()), int(source.Fd()))

	for _, never := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.EXDEV, unix.ENOSYS} {
		if errors.Is(err, never) {
			return false, nil
		}
	}

	return err == nil, err
}

// CreateUnnamed opens a new file in a directory that goes with its last descriptor.
func CreateUnnamed(directory string) (*os.File, error) {
	file, err := os.OpenFile(directory, unix.O_TMPFILE|os.O_RDWR, imageMode)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return file, err
	}

	file, err = os.CreateTemp(directory, ".touchstone-")
	if err != nil {
		return nil, err
	}

	return file, os.Remove(file.Name())
}
