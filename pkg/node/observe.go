package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// loopMajor is the major number of all loop devices.
const loopMajor = 7

// The observations below decide whether a volume may be unstaged, detached or
// deleted. What could not be observed is not absent: they return an error, and the
// call fails.

// staged returns whether the volume really is staged.
func (s *Service) staged(use *staged.Volume) (bool, error) {
	if use.ExposesRawDevice() {
		attachment, attached, err := s.devices.attachment(use.VolumeID)

		// A device that was open at its detach goes with its last user.
		return attached && !attachment.AutoClear, unknown(err, use, "attached")
	}

	return s.mountedAt(use, use.StagingPath)
}

// published returns whether the publication is there, also beneath a foreign mount
// on top of it: a publication that is forgotten could never be taken away.
func (s *Service) published(use *staged.Volume, publication staged.Publication) (bool, error) {
	for _, observed := range []func(*staged.Volume, string) (bool, error){s.mountedAt, s.covered, s.taken} {
		if found, err := observed(use, publication.TargetPath); found || err != nil {
			return found, err
		}
	}

	return false, nil
}

// covered reads the whole mount table, but only where something foreign is.
func (s *Service) covered(use *staged.Volume, at string) (bool, error) {
	if _, mounted, err := s.mountAt(at); err != nil || !mounted {
		return false, unknown(err, use, "mounted at "+at)
	}

	points, err := mount.List()
	if err != nil {
		return false, unknown(err, use, "mounted at "+at)
	}

	for _, point := range points {
		if point.Path != at {
			continue
		}

		if found, err := s.ours(use, point); found || err != nil {
			return found, err
		}
	}

	return false, nil
}

func (s *Service) mountedAt(use *staged.Volume, at string) (bool, error) {
	point, mounted, err := s.mountAt(at)
	if err != nil || !mounted {
		return false, unknown(err, use, "mounted at "+at)
	}

	return s.ours(use, point)
}

// mountAt returns the mount that is exactly at the path, false where none is.
func (s *Service) mountAt(at string) (mount.Point, bool, error) {
	place, err := s.places.Target(at)
	if isNowhere(err) {
		return mount.Point{}, false, nil
	}

	if err != nil {
		return mount.Point{}, false, err
	}
	defer place.Close()

	return place.Mounted()
}

// isNowhere says whether Places.Find has seen that nothing can be mounted at a
// path: a directory in it is missing, or a file or a symlink stands in its place.
// Its other errors say nothing about the path.
func isNowhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, mount.ErrSymlink) || errors.Is(err, mount.ErrWrongType)
}

// unknown returns UNAVAILABLE for an observation that failed, nil for nil.
func unknown(err error, use *staged.Volume, what string) error {
	if err == nil {
		return nil
	}

	return rpc.Errorf(codes.Unavailable, "it is unknown whether volume %s is %s; call again: %w", use.VolumeID, what, err)
}

// ours says whether what is mounted there is this volume. It is told by the
// name of the image, which has the volume's id in it, so that it works for an
// image, too, that was deleted or replaced, or by the name that it had when it
// was attached.
func (s *Service) ours(use *staged.Volume, point mount.Point) (bool, error) {
	if !use.IsImage() {
		root := strings.TrimSuffix(point.Root, "//deleted")

		return path.Base(root) == use.VolumeID, nil
	}

	if use.IsDirect() {
		return isDirectMount(use, point), nil
	}

	number, ok := loopNumber(point)
	if !ok {
		return false, nil
	}

	return s.hasImage(use, number)
}

// hasImage returns whether the device has the volume's image, whatever that is
// called by now.
func (s *Service) hasImage(use *staged.Volume, number int) (bool, error) {
	// First without waiting for an image that hangs.
	attachment, attached, err := s.loops.Attachment(number)
	if err != nil || !attached {
		return false, unknown(err, use, "attached to "+loopName(number))
	}

	if path.Base(attachment.BackingPath) == imageName(use.VolumeID) {
		return true, nil
	}

	status, attached, err := s.loops.Status(number)

	return err == nil && attached && status.AttachedAs == imageName(use.VolumeID), unknown(err, use, "attached to "+loopName(number))
}

func imageName(volumeID string) string { return volumeID + layout.ImageSuffix }

// attachmentOf returns the loop device of the volume's image that is mounted at
// the point, or whose node is bound there. It returns none of an image whose
// filesystem has failed: that one can be unmounted still, but not identified.
func (s *Service) attachmentOf(use *staged.Volume, point mount.Point) (loop.Status, bool, error) {
	number, ok := loopNumber(point)
	if !ok {
		return loop.Status{}, false, nil
	}

	status, attached, err := s.loops.Status(number)
	if errors.Is(err, loop.ErrBackingUnresponsive) {
		return loop.Status{}, false, nil
	}

	if err != nil {
		return loop.Status{}, false, unknown(err, use, "attached to "+loopName(number))
	}

	name := imageName(use.VolumeID)

	return status, attached && (path.Base(status.BackingPath) == name || status.AttachedAs == name), nil
}

func loopNumber(point mount.Point) (int, bool) { return point.LoopDevice() }

// clear unmounts every layer of the volume at the place. What is mounted there
// of anybody else is FAILED_PRECONDITION.
func (s *Service) clear(use *staged.Volume, place *mount.Target) error {
	defer s.prober.CloseGate(use.VolumeID)()

	for {
		point, mounted, err := place.Mounted()
		if err != nil || !mounted {
			return err
		}

		mayGo, err := s.ours(use, point)
		if err == nil && !mayGo && use.Capability.Block {
			mayGo, err = s.staleNode(use, point)
		}

		if err != nil {
			return err
		}

		if !mayGo {
			return rpc.Errorf(codes.FailedPrecondition, "%s: %s is mounted there, which is not volume %s; unmount it first",
				place.Path(), point.Source, use.VolumeID)
		}

		if err := place.Unmount(); err != nil {
			return err
		}
	}
}

// staleNode says whether the node of a loop device is bound at the point to
// which no image is attached any more, or another one than the volume's: such a
// bind outlives the attachment.
func (s *Service) staleNode(use *staged.Volume, point mount.Point) (bool, error) {
	number, isLoop := loopNumber(point)
	if !isLoop || point.Major == loopMajor {
		return false, nil
	}

	if s.devices.had(use.VolumeID, number) {
		return true, nil
	}

	_, attached, err := s.loops.Attachment(number)

	return err == nil && !attached, unknown(err, use, "attached to "+loopName(number))
}

// reconcile drops from the record what is not there any more.
func (s *Service) reconcile(ctx context.Context, use *staged.Volume) error {
	pruned, err := s.prune(use)
	if err != nil {
		return err
	}

	if len(pruned.Publications) == 0 && s.stagesItself(pruned) {
		return s.unstageLast(ctx, use.VolumeID)
	}

	staged, err := s.staged(pruned)
	if err != nil {
		return err
	}

	if len(pruned.Publications) > 0 || staged {
		// A publication that did not come about may have left its device.
		return errors.Join(s.releaseReader(ctx, pruned), s.reassign(pruned))
	}

	s.config.Log.Info("a volume is not staged any more", "volume", use.VolumeID, "stagingPath", use.StagingPath)

	if err := s.releaseDevices(ctx, use); err != nil {
		return err
	}

	return s.forget(use)
}

// prune drops the publications that the mount table does not show, and returns
// what is left.
func (s *Service) prune(use *staged.Volume) (*staged.Volume, error) {
	for _, publication := range use.Publications {
		published, err := s.published(use, publication)
		if err != nil {
			return nil, err
		}

		if published {
			continue
		}

		s.config.Log.Info("a volume is not published any more", "volume", use.VolumeID, "target", publication.TargetPath)

		if err := s.removeTarget(use, publication); err != nil {
			return nil, err
		}

		use = use.WithoutPublication(publication.TargetPath)
		if err := s.stagedVolumes.PutLazily(use); err != nil {
			return nil, err
		}
	}

	return use, nil
}

// removeTarget removes what was made for a publication beside its mount: its
// pod's limits, what a runtime was told, and the target path unless it was there
// before. One of them in trouble keeps none of the others.
func (s *Service) removeTarget(use *staged.Volume, publication staged.Publication) error {
	err := errors.Join(s.tuner.RemoveLimits(publication.TargetPath), s.withdraw(use, publication.TargetPath))
	if publication.Made {
		err = errors.Join(err, s.removeMade(publication.TargetPath))
	}

	return err
}

// removeMade removes a target path that was made for a publication. What has
// content by now is somebody else's.
func (s *Service) removeMade(target string) error {
	place, err := s.places.Target(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("remove target: %w", err)
	}
	defer place.Close()

	err = place.Remove()
	if errors.Is(err, mount.ErrNotEmpty) || errors.Is(err, mount.ErrWrongType) || errors.Is(err, mount.ErrBusy) {
		s.config.Log.Warn("a target path that was made for a volume is used for something else and stays",
			"target", target, "reason", err)

		return nil
	}

	return err
}
