package access

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// OpenRoot opens the root of the volume's filesystem wherever it is mounted, nil where it is
// not mounted.
func (p *Provider) OpenRoot(v *staged.Volume) (*os.File, mount.Point, error) {
	root, point, err := p.openMounted(v, v.StagingPath)

	for _, publication := range v.Publications {
		if root != nil || err != nil {
			break
		}

		root, point, err = p.openMounted(v, publication.TargetPath)
	}

	return root, point, err
}

// openMounted opens the mount at a path, nil unless it is the volume.
func (p *Provider) openMounted(v *staged.Volume, at string) (*os.File, mount.Point, error) {
	dir, err := p.config.Dirs.Target(at)
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

	if isVolume, err := p.observe.IsMountOf(v, point); err != nil || !isVolume {
		return nil, mount.Point{}, err
	}

	root, point, err := dir.OpenMount()
	if err != nil {
		return nil, mount.Point{}, err
	}

	if isVolume, err := p.observe.IsMountOf(v, point); err != nil || !isVolume {
		return nil, mount.Point{}, errors.Join(err, root.Close())
	}

	return root, point, nil
}

// checkWritable returns FAILED_PRECONDITION for a filesystem that was mounted for writing and
// has stopped writing after an error: a copy would be of an undefined state of its disk.
func checkWritable(v *staged.Volume, point mount.Point) error {
	options, err := mount.ParseFlags(v.Capability.MountFlags)
	if err != nil {
		return err
	}

	failed := point.HasSuperOption("emergency_ro") || point.HasSuperOption("shutdown") ||
		point.SuperReadOnly && !options.ReadOnly()
	if !failed {
		return nil
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"its %s at %s was mounted for writing and has stopped writing (%v); see the kernel's log, unstage the volume and stage it again",
		v.FSType(), point.Path, point.SuperOptions)
}

// CheckNotShutDown returns FAILED_PRECONDITION for a staged image whose filesystem has shut down. Only
// a mount after the last unmount ends that, so that another user of this mount would have no data.
func (p *Provider) CheckNotShutDown(v *staged.Volume) error {
	if !CanFreeze(v) {
		return nil
	}

	root, point, err := p.openMounted(v, v.StagingPath)
	if root != nil {
		defer root.Close()

		// An XFS shows it by failing all calls, an ext4 by an option.
		_, err = root.Stat()
	}

	if !errors.Is(err, unix.EIO) && !point.HasSuperOption("shutdown") {
		return err
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"its %s at %s has shut down; see the kernel's log, and end all pods that use the volume on this node before others are made "+
			"(scale a Deployment to 0): when it is unstaged and staged again, its log is replayed and the filesystem checked",
		v.FSType(), v.StagingPath)
}
