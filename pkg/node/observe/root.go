package observe

import (
	"errors"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// OpenRoot opens the root of the volume's filesystem wherever it is mounted, nil where it is
// not mounted.
func (o *Observer) OpenRoot(v *staged.Volume) (*os.File, mount.Point, error) {
	root, point, err := o.OpenMounted(v, v.StagingPath)

	for _, publication := range v.Publications {
		if root != nil || err != nil {
			break
		}

		root, point, err = o.OpenMounted(v, publication.TargetPath)
	}

	return root, point, err
}

// OpenMounted opens the mount at a path, nil unless it is the volume.
func (o *Observer) OpenMounted(v *staged.Volume, at string) (*os.File, mount.Point, error) {
	dir, err := o.dirs.Target(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, mount.Point{}, nil
	}

	if err != nil {
		return nil, mount.Point{}, err
	}
	defer dir.Close()

	// The mount table comes first: opening a foreign mount may hang.
	point, mounted, err := dir.Mounted()
	if err != nil || !mounted {
		return nil, mount.Point{}, err
	}

	if isVolume, err := o.IsMountOf(v, point); err != nil || !isVolume {
		return nil, mount.Point{}, err
	}

	root, err := dir.OpenRoot(point)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, mount.Point{}, nil // it has just been unmounted, or something mounted over it
	}

	return root, point, err
}
