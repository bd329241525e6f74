package access

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// checkWritable returns FAILED_PRECONDITION for a filesystem that was mounted for writing and
// has stopped writing after an error: a copy would be of an undefined state of its disk.
func checkWritable(v *staged.Volume, point mount.Point) error {
	failed := point.HasSuperOption("emergency_ro") || point.HasSuperOption("shutdown") ||
		point.SuperReadOnly && !v.MountOptions().ReadOnly()
	if !failed {
		return nil
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"its %s at %s was mounted for writing and has stopped writing (%v); see the kernel's log, unstage the volume and stage it again",
		v.FSType(), point.Path, point.SuperOptions)
}

// CheckNotShutDown returns FAILED_PRECONDITION for a staged image whose filesystem has shut down. Only
// a mount after the last unmount ends that, so that another user of this mount would have no data.
func (w *Ways) CheckNotShutDown(v *staged.Volume) error {
	if !v.IsMountedImage() {
		return nil
	}

	root, point, err := w.Targets.observer.OpenMounted(v, v.StagingPath)
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
