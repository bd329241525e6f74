package observe

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Observer observes volumes on this node. It has no state.
type Observer struct {
	dirs  *mount.AllowedDirs
	loops *loop.Loops
}

// New returns an Observer of mounts in dirs.
func New(dirs *mount.AllowedDirs, loops *loop.Loops) *Observer {
	return &Observer{dirs: dirs, loops: loops}
}

// MountAt returns the visible mount exactly at the path, false where none is.
func (o *Observer) MountAt(path string) (mount.Point, bool, error) {
	dir, err := o.dirs.Target(path)
	if IsNoMountTarget(err) {
		return mount.Point{}, false, nil
	}

	if err != nil {
		return mount.Point{}, false, err
	}
	defer dir.Close()

	return dir.Mounted()
}

// IsNoMountTarget reports whether an error of mount.AllowedDirs.Target means that nothing can be
// mounted at the path: a directory of the path is missing, or is a file or a symlink. Its
// other errors say nothing about the path.
func IsNoMountTarget(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, mount.ErrSymlink) || errors.Is(err, mount.ErrWrongType)
}

// IsMountedAt reports whether the visible mount at the path is the volume.
func (o *Observer) IsMountedAt(volume *staged.Volume, path string) (bool, error) {
	_, isVolume, err := o.MountOf(volume, path)

	return isVolume, err
}

// MountOf reports whether the visible mount at the path is the volume, and returns the mount.
func (o *Observer) MountOf(volume *staged.Volume, path string) (mount.Point, bool, error) {
	point, mounted, err := o.MountAt(path)
	if err != nil || !mounted {
		return mount.Point{}, false, Unknown(err, volume, "mounted at "+path)
	}

	isVolume, err := o.IsMountOf(volume, point)

	return point, isVolume, err
}

// IsCoveredAt reports whether the volume is mounted at the path beneath another mount.
func (o *Observer) IsCoveredAt(volume *staged.Volume, path string) (bool, error) {
	dir, err := o.dirs.Target(path)
	if IsNoMountTarget(err) {
		return false, nil
	}

	if err != nil {
		return false, Unknown(err, volume, "mounted at "+path)
	}
	defer dir.Close()

	points, err := dir.Layers()
	if err != nil {
		return false, Unknown(err, volume, "mounted at "+path)
	}

	for _, point := range points {
		if found, err := o.IsMountOf(volume, point); found || err != nil {
			return found, err
		}
	}

	return false, nil
}

// Unknown returns UNAVAILABLE for an observation that failed, nil for nil.
func Unknown(err error, volume *staged.Volume, what string) error {
	if err != nil {
		return errdefs.Errorf(errdefs.ErrUnavailable, "it is unknown whether volume %s is %s; call again: %w", volume.VolumeID, what, err)
	}

	return nil
}

// IsMountOf reports whether the mount is of this volume. A directory has the object's id
// as its name, a loop device has the volume's image.
func (o *Observer) IsMountOf(volume *staged.Volume, point mount.Point) (bool, error) {
	if !volume.Parameters.Backing.HasDevice() {
		return IsDirectoryOf(volume, point), nil
	}

	if volume.IsDirect() {
		return IsDirectMountOf(volume, point), nil
	}

	number, ok := point.LoopDevice()
	if !ok {
		return false, nil
	}

	return o.HasImage(volume, number)
}

// IsDirectoryOf reports whether the root of a bind mount is the volume's directory, also
// where that was deleted.
func IsDirectoryOf(volume *staged.Volume, point mount.Point) bool {
	return filepath.Base(point.RootPath()) == volume.ObjectID()
}

// directSourcePrefix precedes the volume's id in the source of the mount at a direct
// volume's target path. By it the publication is found without any record.
const directSourcePrefix = "touchstone/"

// DirectFSType is the filesystem that is mounted at a direct volume's target path.
const DirectFSType = "tmpfs"

// DirectSource returns the source of the mount at a direct volume's target path.
func DirectSource(volumeID string) string { return directSourcePrefix + volumeID }

// IsDirectMountOf reports whether the mount is the one at the target path of a direct
// volume.
func IsDirectMountOf(volume *staged.Volume, point mount.Point) bool {
	return point.FSType == DirectFSType && point.Source == DirectSource(volume.VolumeID)
}

// HasImage reports whether the device has the volume's image. It compares the image's name,
// which has the object's id in it: the current one or, if the image was renamed, the one at
// its attachment. So it works for an image that was deleted or replaced, too.
func (o *Observer) HasImage(volume *staged.Volume, number int) (bool, error) {
	// First from sysfs: LOOP_GET_STATUS64 blocks on an image whose filesystem hangs.
	attachment, attached, err := o.loops.Attachment(number)
	if err != nil || !attached {
		return false, Unknown(err, volume, "attached to "+loop.Name(number))
	}

	name := ImageName(volume.ObjectID())
	if filepath.Base(attachment.BackingPath) == name {
		return true, nil
	}

	status, attached, err := o.loops.Status(number)

	return err == nil && attached && status.AttachedAs == name, Unknown(err, volume, "attached to "+loop.Name(number))
}

// DeviceAt returns the loop device of the volume's image that is mounted at the point, or
// whose node is bound there. It returns none for an image whose filesystem has failed:
// that device can still be unmounted, but not identified.
func (o *Observer) DeviceAt(volume *staged.Volume, point mount.Point) (loop.Status, bool, error) {
	number, ok := point.LoopDevice()
	if !ok {
		return loop.Status{}, false, nil
	}

	status, attached, err := o.loops.Status(number)
	if errors.Is(err, loop.ErrBackingUnresponsive) {
		return loop.Status{}, false, nil
	}

	if err != nil {
		return loop.Status{}, false, Unknown(err, volume, "attached to "+loop.Name(number))
	}

	if !attached || status.AttachedAs == ImageName(volume.ObjectID()) {
		return status, attached, nil
	}

	// Another program may have attached the image by another name.
	hasImage, err := o.HasImage(volume, number)

	return status, hasImage, err
}

// ImageName returns the name of an image in its pool by its object id (staged.Volume.ObjectID).
func ImageName(objectID string) string { return objectID + layout.ImageSuffix }
