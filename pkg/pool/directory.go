package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/pkg/pool/quota"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// EnsureDirectory creates the volume's directory if it is missing, and limits its size where the
// filesystem supports that. It never lowers the limit of an existing directory.
func (p *Pool) EnsureDirectory(id string, size int64) error {
	if err := checkID(id); err != nil {
		return err
	}

	err := p.quotas.Make(p.directories, id, volumeRootMode)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = p.LimitDirectory(id, size)
	}

	if err != nil {
		return p.spaceError(fmt.Errorf("make directory of volume %s: %w", id, err))
	}

	return nil
}

// LimitDirectory raises the size limit of a volume's directory, where it can have one. It is
// durable after SyncDirectory. Errors: ErrMissing.
func (p *Pool) LimitDirectory(id string, size int64) error {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()

	if err := p.quotas.Limit(directory, size); err != nil {
		return fmt.Errorf("limit the size of volume %s in pool %q: %w", id, p.name, err)
	}

	return nil
}

// SyncDirectory makes the name of the volume's directory and its size limit durable.
func (p *Pool) SyncDirectory(id string) error {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()

	if err := p.quotas.Sync(directory); err != nil {
		return p.spaceError(fmt.Errorf("sync the directory of volume %s in pool %q: %w", id, p.name, err))
	}

	return p.syncDirectory(p.directories)
}

// OpenDirectory opens the root of a directory-backed volume without following a symlink. Errors:
// ErrMissing.
func (p *Pool) OpenDirectory(id string) (*os.File, error) {
	return p.open(Object{ID: id, Backing: volume.BackingDirectory})
}

// DirectoryQuota returns the limit of a volume's directory and its usage, as the kernel counts it.
// It takes the same time for any number of files. It returns false if the size of the directory is
// not limited. Errors: ErrMissing.
func (p *Pool) DirectoryQuota(id string) (quota.Usage, bool, error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return quota.Usage{}, false, err
	}
	defer directory.Close()

	usage, limited, err := p.quotas.Usage(directory)
	if err != nil {
		return quota.Usage{}, false, fmt.Errorf("usage of volume %s in pool %q: %w", id, p.name, err)
	}

	return usage, limited, nil
}

// DirectorySupport returns how the sizes of new directories are limited, and whether they are copied
// at one point in time.
func (p *Pool) DirectorySupport() quota.Support { return p.quotas.Support() }
