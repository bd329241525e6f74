package embedded

import (
	"errors"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/pool/filecopy"
)

// Reflinks reports whether files in a directory can share blocks, by trying it with two that never
// get a name.
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

	// A hole: the answer must not need space.
	if err := source.Truncate(4096); err != nil {
		return false, err
	}

	err = filecopy.Clone(target, source)
	if errors.Is(err, filecopy.ErrCloneUnsupported) {
		return false, nil
	}

	return err == nil, err
}
