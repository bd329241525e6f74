package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// maxMutableBytes is many times the size of all mutable parameters.
const maxMutableBytes = 64 << 10

// attributes are the mutable parameters of the volumes of a pool.
type attributes struct {
	label

	mutable *os.Root
	volumes objects
}

// MutablePath returns the absolute path of the directory with the mutable parameters of volumes,
// to be watched. A file in it is replaced, never changed.
func (a *attributes) MutablePath() string { return a.mutable.Name() }

// SetMutable stores the mutable parameters of a volume durably, for every node that uses the
// pool.
func (a *attributes) SetMutable(id string, wanted volume.Mutable) error {
	if err := checkID(id); err != nil {
		return err
	}

	if err := a.replaceMutable(id, wanted); err != nil {
		return a.spaceError(fmt.Errorf("write the mutable parameters of volume %s into pool %q: %w", id, a.name, err))
	}

	return a.syncDirectory(a.mutable)
}

func (a *attributes) replaceMutable(id string, wanted volume.Mutable) error {
	fresh := id + layout.MutableScratchSuffix

	text, err := json.MarshalIndent(wanted, "", "  ")
	if err != nil {
		return err
	}

	if err := writeSynced(a.mutable, fresh, os.O_TRUNC, imageMode, text); err != nil {
		return err
	}

	return a.mutable.Rename(fresh, id+layout.MutableSuffix)
}

// Mutable returns the mutable parameters of a volume, the zero value if none were set.
func (a *attributes) Mutable(id string) (found volume.Mutable, err error) {
	if err := checkID(id); err != nil {
		return volume.Mutable{}, err
	}

	file, err := tree.OpenIn(a.mutable, id+layout.MutableSuffix, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.Mutable{}, nil
	}

	if err != nil {
		return volume.Mutable{}, fmt.Errorf("mutable parameters of volume %s in pool %q: %w", id, a.name, err)
	}
	defer file.Close()
	defer errdefs.Wrapf(&err, "mutable parameters of volume %s in %s", id, a.MutablePath())

	text, err := io.ReadAll(io.LimitReader(file, maxMutableBytes))
	if err != nil {
		return volume.Mutable{}, err
	}

	err = json.Unmarshal(text, &found)

	return found, err
}

// RemoveUnusedMutable removes the mutable parameters of volumes that are neither known nor in the pool.
func (a *attributes) RemoveUnusedMutable(ctx context.Context, known func(id string) bool) error {
	return listIDs(ctx, a.mutable, layout.MutableSuffix, func(id string) error {
		if known(id) {
			return nil
		}

		if _, _, err := a.volumes.Find(id); !errors.Is(err, ErrMissing) {
			return nil // it may be there
		}

		return a.removeMutable(id)
	})
}

func (a *attributes) removeMutable(id string) error {
	for _, name := range []string{id + layout.MutableSuffix, id + layout.MutableScratchSuffix} {
		if err := removeMissing(a.mutable, name); err != nil {
			return fmt.Errorf("remove the mutable parameters of volume %s from pool %q: %w", id, a.name, err)
		}
	}

	return nil
}
