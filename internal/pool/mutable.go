package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// maxMutableBytes is many times the size of all mutable parameters.
const maxMutableBytes = 64 << 10

// MutablePath returns the absolute path of the directory with the mutable parameters of volumes,
// to be watched. A file in it is replaced, never changed.
func (p *Pool) MutablePath() string { return filepath.Join(p.path, layout.Mutable) }

// SetMutable stores the mutable parameters of a volume durably, for every node that uses the
// pool.
func (p *Pool) SetMutable(id string, wanted volume.Mutable) error {
	if err := checkID(id); err != nil {
		return err
	}

	if err := p.replaceMutable(id, wanted); err != nil {
		return p.spaceError(fmt.Errorf("write the mutable parameters of volume %s into pool %q: %w", id, p.name, err))
	}

	return p.syncDirectory(p.mutable)
}

func (p *Pool) replaceMutable(id string, wanted volume.Mutable) error {
	fresh := id + layout.MutableScratchSuffix

	text, err := json.MarshalIndent(wanted, "", "  ")
	if err != nil {
		return err
	}

	file, err := p.mutable.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, imageMode)
	if err != nil {
		return err
	}

	_, err = file.Write(append(text, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, p.mutable.Remove(fresh))
	}

	return p.mutable.Rename(fresh, id+layout.MutableSuffix)
}

// Mutable returns the mutable parameters of a volume, the zero value if none were set.
func (p *Pool) Mutable(id string) (found volume.Mutable, err error) {
	if err := checkID(id); err != nil {
		return volume.Mutable{}, err
	}

	file, err := p.mutable.OpenFile(id+layout.MutableSuffix, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.Mutable{}, nil
	}

	if err != nil {
		return volume.Mutable{}, fmt.Errorf("mutable parameters of volume %s in pool %q: %w", id, p.name, err)
	}
	defer file.Close()
	defer errdefs.Wrapf(&err, "mutable parameters of volume %s in %s", id, p.MutablePath())

	text, err := io.ReadAll(io.LimitReader(file, maxMutableBytes))
	if err != nil {
		return volume.Mutable{}, err
	}

	if err := json.Unmarshal(text, &found); err != nil {
		return volume.Mutable{}, err
	}

	return found, nil
}

// RemoveUnusedMutable removes the mutable parameters of volumes that are neither known nor in the pool.
func (p *Pool) RemoveUnusedMutable(ctx context.Context, known func(id string) bool) error {
	return listIDs(ctx, p.mutable, layout.MutableSuffix, func(id string) error {
		if known(id) {
			return nil
		}

		for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
			object := Object{ID: id, Backing: backing}
			if _, err := p.parentOf(object).Lstat(object.fileName()); !errors.Is(err, fs.ErrNotExist) {
				return nil // it may be there
			}
		}

		return p.removeMutable(id)
	})
}

func (p *Pool) removeMutable(id string) error {
	for _, name := range []string{id + layout.MutableSuffix, id + layout.MutableScratchSuffix} {
		if err := p.mutable.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the mutable parameters of volume %s from pool %q: %w", id, p.name, err)
		}
	}

	return nil
}
