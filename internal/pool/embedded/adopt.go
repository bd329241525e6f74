package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// adoptMount returns the root of the image that is mounted already, grown if need be, or nil where
// nothing is mounted.
func (s *mounter) adoptMount(ctx context.Context, image *os.File) (*os.File, error) {
	point, mounted, err := s.target.Mounted()
	if err != nil || !mounted {
		return nil, err
	}

	status, err := s.verifyMount(point, image)
	if err != nil {
		return nil, err
	}

	if point.SuperReadOnly && s.kind.readOnlyAfterError {
		return nil, s.unmountAfterShutdown(ctx)
	}

	if point.ReadOnly || point.SuperReadOnly {
		return nil, fmt.Errorf("it is mounted read-only at %s: %w; unmount it", point.Path, ErrForeign)
	}

	// An XFS that has shut down answers this only.
	if _, err := s.target.Exists(); errors.Is(err, unix.EIO) {
		return nil, s.unmountAfterShutdown(ctx)
	}

	root, err := s.target.OpenDir()
	if err != nil || !s.privileged {
		return root, err
	}

	if err := s.grow(ctx, image, status, root); err != nil {
		return nil, errors.Join(s.explainFullHost(err), root.Close())
	}

	return root, nil
}

// unmountAfterShutdown unmounts a filesystem that is shut down: only a new mount makes it usable.
func (s *mounter) unmountAfterShutdown(ctx context.Context) error {
	if !s.privileged {
		return fmt.Errorf("its filesystem has shut down after an I/O error: %w", ErrPrivilege)
	}

	s.Log.WarnContext(ctx, "the embedded pool had shut down after an I/O error and is mounted again", "pool", s.Directory)

	err := s.target.Unmount()
	if errors.Is(err, mount.ErrBusy) {
		return s.explainFullHost(fmt.Errorf("its filesystem has shut down after an I/O error: %w; "+
			"end the pods that use them, or reboot, and start again: %w", ErrBusy, err))
	}

	return err
}

// mountedImage returns the mount of the pool's image and its loop device, false where there is no
// mount or no image. Error: ErrForeign for another mount.
func (s *mounter) mountedImage() (mount.Point, loop.Status, bool, error) {
	point, mounted, err := s.target.Mounted()
	if err != nil || !mounted {
		return mount.Point{}, loop.Status{}, false, err
	}

	image, err := s.openImage()
	if err != nil || image == nil {
		return mount.Point{}, loop.Status{}, false, err
	}
	defer image.Close()

	status, err := s.verifyMount(point, image)

	return point, status, err == nil, err
}

// verifyMount returns the loop device of what is mounted, if it is this image.
func (s *mounter) verifyMount(point mount.Point, image *os.File) (loop.Status, error) {
	number, isLoop := point.LoopDevice()
	kind, unknown := typeByName(point.FSType)

	if !isLoop || unknown != nil || point.Root != "/" {
		return loop.Status{}, s.foreignMount(point, point.FSType+" of "+point.Source)
	}

	s.kind = kind

	attachment, _, err := s.loops.Attachment(number)
	if err != nil {
		return loop.Status{}, err
	}

	if !s.privileged {
		return loop.Status{Number: number}, s.comparePath(point, attachment.BackingPath, image)
	}

	wanted, err := loop.IdentityOf(image)
	if err != nil {
		return loop.Status{}, err
	}

	status, attached, err := s.loops.Status(number)
	if err != nil {
		return loop.Status{}, err
	}

	if !attached || status.Backing != wanted {
		return loop.Status{}, s.foreignMount(point, attachment.BackingPath)
	}

	return status, nil
}

func (h *host) foreignMount(point mount.Point, what string) error {
	return fmt.Errorf("mounted at %s is %s and not %s: %w; unmount it", point.Path, what, h.path(layout.EmbeddedImage), ErrForeign)
}

// comparePath is for a process that may not query the device: sysfs shows the path of its image to
// all, in terms of the mount namespace that attached it.
func (h *host) comparePath(point mount.Point, path string, image *os.File) error {
	own, err := image.Stat()
	if err != nil {
		return fmt.Errorf("find out what is mounted at %s: %w", point.Path, err)
	}

	there, err := os.Stat(path)
	if filepath.Base(path) != layout.EmbeddedImage || err == nil && !os.SameFile(own, there) {
		return h.foreignMount(point, path)
	}

	return nil
}

// detachLimit bounds the wait for the device's end where another mount namespace
// keeps a copy of the mount.
const detachLimit = time.Second

// unmount removes the mount if it is this pool's and not in use.
func (s *mounter) unmount(ctx context.Context) error {
	point, status, mounted, err := s.mountedImage()
	if err != nil || !mounted {
		return err
	}

	if used, err := s.mountedElsewhere(point); err != nil || used {
		return err
	}

	err = s.unmountOnceFree(ctx, point)
	if errors.Is(err, mount.ErrBusy) {
		s.Log.InfoContext(ctx, "the embedded pool stays mounted: it is in use", "pool", s.Directory)

		return nil
	}

	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()

	err = s.loops.DetachSame(ctx, status)
	if errors.Is(err, loop.ErrInUse) {
		s.Log.InfoContext(ctx, "the embedded pool's device stays: another mount namespace has it mounted", "device", status.Path)

		return nil
	}

	return err
}

// How often, and for how long, it is tried to unmount what another process has open.
const (
	freePeriod = 50 * time.Millisecond
	freeLimit  = 5 * time.Second
)

// unmountOnceFree waits a little for others to close what they have open in the
// filesystem: when all is taken down at once, the controller ends beside its node.
// A volume in use is not waited for, since it will be for long. Errors:
// mount.ErrBusy.
func (s *mounter) unmountOnceFree(ctx context.Context, point mount.Point) error {
	ctx, cancel := context.WithTimeout(ctx, freeLimit)
	defer cancel()

	for logged := false; ; logged = true {
		err := s.target.Unmount()
		if !errors.Is(err, mount.ErrBusy) {
			return err
		}

		if used, listErr := s.hasVolumes(point); used || listErr != nil {
			return errors.Join(err, listErr)
		}

		if !logged {
			s.Log.InfoContext(ctx, "the embedded pool waits for who ends beside this driver", "pool", s.Directory, "at_most", freeLimit)
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(freePeriod):
		}
	}
}

// hasVolumes reports whether a file of the filesystem is attached to a loop device. A file's device
// is the superblock's on XFS, and that of its subvolume on btrfs, whose files are known by their path.
func (s *mounter) hasVolumes(point mount.Point) (bool, error) {
	attached, err := s.loops.Attachments()
	if err != nil {
		return false, err
	}

	for _, each := range attached {
		if strings.HasPrefix(each.BackingPath, point.Path+"/") {
			return true, nil
		}

		status, _, err := s.loops.Status(each.Number)
		if err != nil && !errors.Is(err, loop.ErrBackingUnresponsive) {
			return false, err
		}

		if status.Backing.Device == unix.Mkdev(point.Major, point.Minor) {
			return true, nil
		}
	}

	return false, nil
}

// mountedElsewhere says whether directories of the filesystem are mounted at other
// mount targets, as published volumes are: that would not keep it from being unmounted.
func (s *mounter) mountedElsewhere(point mount.Point) (bool, error) {
	points, err := s.target.List()

	return slices.ContainsFunc(points, func(each mount.Point) bool {
		return each.Major == point.Major && each.Minor == point.Minor && each.ID != point.ID
	}), err
}
