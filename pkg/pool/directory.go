package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// EnsureDirectory creates the volume's directory if it is missing.
func (p *Pool) EnsureDirectory(id string) error {
	if err := checkID(id); err != nil {
		return err
	}

	err := p.directories.Mkdir(id, volumeRootMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}

	if err != nil {
		return p.spaceError(fmt.Errorf("make directory of volume %s: %w", id, err))
	}

	// The process's umask must not decide who can use the volume.
	if err := p.directories.Chmod(id, volumeRootMode); err != nil {
		return fmt.Errorf("mode of the directory of volume %s: %w", id, err)
	}

	return nil
}

// SyncDirectory makes the name of the volume's directory durable.
func (p *Pool) SyncDirectory(id string) error {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()

	return p.syncDirectory(p.directories)
}

// OpenDirectory opens the root of a directory-backed volume without following a symlink. Errors:
// ErrMissing.
func (p *Pool) OpenDirectory(id string) (*os.File, error) {
	return p.open(Object{ID: id, Backing: volume.BackingDirectory})
}
