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

// maxAttributesBytes is many times the size of all attributes.
const maxAttributesBytes = 64 << 10

// AttributesPath returns the absolute path of the directory with the mutable attributes of volumes,
// to be watched. A file in it is replaced, never changed.
func (p *Pool) AttributesPath() string { return filepath.Join(p.path, layout.Attributes) }

// SetAttributes stores the mutable attributes of a volume durably, for every node that uses the
// pool.
func (p *Pool) SetAttributes(id string, attributes volume.Mutable) error {
	if err := checkID(id); err != nil {
		return err
	}

	if err := p.replaceAttributes(id, attributes); err != nil {
		return p.spaceError(fmt.Errorf("write the attributes of volume %s into pool %q: %w", id, p.name, err))
	}

	return p.syncDirectory(p.attributes)
}

func (p *Pool) replaceAttributes(id string, attributes volume.Mutable) error {
	fresh := id + layout.AttributesScratchSuffix

	text, err := json.MarshalIndent(attributes, "", "  ")
	if err != nil {
		return err
	}

	file, err := p.attributes.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, imageMode)
	if err != nil {
		return err
	}

	_, err = file.Write(append(text, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, p.attributes.Remove(fresh))
	}

	return p.attributes.Rename(fresh, id+layout.AttributesSuffix)
}

// Attributes returns the mutable attributes of a volume, the zero value if none were set.
func (p *Pool) Attributes(id string) (found volume.Mutable, err error) {
	if err := checkID(id); err != nil {
		return volume.Mutable{}, err
	}

	file, err := p.attributes.OpenFile(id+layout.AttributesSuffix, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.Mutable{}, nil
	}

	if err != nil {
		return volume.Mutable{}, fmt.Errorf("attributes of volume %s in pool %q: %w", id, p.name, err)
	}
	defer file.Close()
	defer errdefs.Wrapf(&err, "attributes of volume %s in %s", id, p.AttributesPath())

	text, err := io.ReadAll(io.LimitReader(file, maxAttributesBytes))
	if err != nil {
		return volume.Mutable{}, err
	}

	err = json.Unmarshal(text, &found)

	return found, err
}

// RemoveUnusedAttributes removes the attributes of volumes that are neither known nor in the pool.
func (p *Pool) RemoveUnusedAttributes(ctx context.Context, known func(id string) bool) error {
	return listIDs(ctx, p.attributes, layout.AttributesSuffix, func(id string) error {
		if known(id) {
			return nil
		}

		for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
			object := Object{ID: id, Backing: backing}
			if _, err := p.parentOf(object).Lstat(object.fileName()); !errors.Is(err, fs.ErrNotExist) {
				return nil // it may be there
			}
		}

		return p.removeAttributes(id)
	})
}

func (p *Pool) removeAttributes(id string) error {
	for _, name := range []string{id + layout.AttributesSuffix, id + layout.AttributesScratchSuffix} {
		if err := p.attributes.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the attributes of volume %s from pool %q: %w", id, p.name, err)
		}
	}

	return nil
}
