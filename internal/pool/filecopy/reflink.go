package filecopy

import (
	"errors"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// Reflinks reports whether files in a directory can share blocks, by cloning an unnamed file.
func Reflinks(directory string) (bool, error) {
	source, err := filesystem.CreateUnnamed(directory)
	if err != nil {
		return false, err
	}
	defer source.Close()

	target, err := filesystem.CreateUnnamed(directory)
	if err != nil {
		return false, err
	}
	defer target.Close()

	// Some filesystems clone only empty files, so write a byte. If the filesystem is full, an empty
	// file decides.
	_, _ = source.WriteAt([]byte("reflink"), 0)

	err = Clone(target, source)
	if errors.Is(err, ErrCloneUnsupported) {
		return false, nil
	}

	return err == nil, err
}
