package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/blockdev"
	"github.com/touchstone-csi/touchstone/pkg/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// loopMajor is the major number of all loop devices.
const loopMajor = 7

// staged says whether the volume really is staged. What can't be observed is
// not there.
func (s *Service) staged(use *Use) bool {
	if use.byDevice() {
		return s.devices.stays(use.VolumeID)
	}

	return s.mountedAt(use, use.StagingPath)
}

// published says whether the publication is there, be it beneath what somebody
// else has mounted on top: forgotten, it could never be taken away.
func (s *Service) published(use *Use, publication Publication) bool {
	at := publication.TargetPath

	return s.mountedAt(use, at) || s.covered(use, at) || s.taken(use, at)
}

// covered reads the whole mount table, but only where something foreign is.
func (s *Service) covered(use *Use, at string) bool {
	place, err := s.places.Find(at)
	if err != nil {
		return false
	}
	defer place.Close()

	if _, mounted, err := place.Mounted(); err != nil || !mounted {
		return false
	}

	points, err := mount.List()

	return err == nil && slices.ContainsFunc(points, func(point mount.Point) bool {
		return point.Path == at && s.ours(use, point)
	})
}

func (s *Service) mountedAt(use *Use, at string) bool {
	place, err := s.places.Find(at)
	if err != nil {
		return false
	}
	defer place.Close()

	point, mounted, err := place.Mounted()

	return err == nil && mounted && s.ours(use, point)
}

// ours says whether what is mounted there is this volume. It is told by the
// name of the image, which has the volume's id in it, so that it works for an
// image, too, that was deleted or replaced, or by the name that it had when it
// was attached.
func (s *Service) ours(use *Use, point mount.Point) bool {
	if !use.image() {
		root := strings.TrimSuffix(point.Root, "//deleted")

		return path.Base(root) == use.VolumeID
	}

	if use.direct() {
		return use.showsDirect(point)
	}

	number, ok := loopNumber(point)
	if !ok {
		return false
	}

	// Without waiting for an image that hangs.
	attachment, attached := s.loops.Attachment(number)

	return attached && (path.Base(attachment.BackingPath) == imageName(use.VolumeID) || s.attachedAs(use.VolumeID, number))
}

func imageName(volumeID string) string { return volumeID + pool.ImageSuffix }

// attachedAs says whether the device got the volume's image, whatever that is
// called by now.
func (s *Service) attachedAs(volumeID string, number int) bool {
	status, attached, err := s.loops.Status(number)

	return err == nil && attached && status.AttachedAs == imageName(volumeID)
}

// attachmentOf returns the loop device of the volume's image that is mounted at
// the point, or whose node is bound there.
func (s *Service) attachmentOf(use *Use, point mount.Point) (blockdev.Status, bool) {
	number, ok := loopNumber(point)
	if !ok {
		return blockdev.Status{}, false
	}

	status, attached, err := s.loops.Status(number)
	name := imageName(use.VolumeID)

	return status, err == nil && attached && (path.Base(status.BackingPath) == name || status.AttachedAs == name)
}

func loopNumber(point mount.Point) (int, bool) { return point.LoopDevice() }

// clear unmounts every layer of the volume at the place. What is mounted there
// of anybody else is FAILED_PRECONDITION.
func (s *Service) clear(use *Use, place *mount.Place) error {
	defer s.visits.await(use.VolumeID)()

	for {
		point, mounted, err := place.Mounted()
		if err != nil || !mounted {
			return err
		}

		mayGo := s.ours(use, point) || use.Capability.Block && s.staleNode(use, point)
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
func (s *Service) staleNode(use *Use, point mount.Point) bool {
	number, isLoop := loopNumber(point)
	if !isLoop || point.Major == loopMajor {
		return false
	}

	if s.devices.had(use.VolumeID, number) {
		return true
	}

	_, attached, err := s.loops.Status(number)

	return err == nil && !attached
}

// reconcile drops from the record what is not there any more.
func (s *Service) reconcile(ctx context.Context, use *Use) error {
	pruned, err := s.prune(use)
	if err != nil {
		return err
	}

	if len(pruned.Publications) == 0 && s.stagesItself(pruned) {
		return s.unstageLast(ctx, use.VolumeID)
	}

	if len(pruned.Publications) > 0 || s.staged(pruned) {
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
func (s *Service) prune(use *Use) (*Use, error) {
	for _, publication := range use.Publications {
		if s.published(use, publication) {
			continue
		}

		s.config.Log.Info("a volume is not published any more", "volume", use.VolumeID, "target", publication.TargetPath)

		if err := s.removeTarget(use, publication); err != nil {
			return nil, err
		}

		use = use.without(publication.TargetPath)
		if err := s.uses.putDone(use); err != nil {
			return nil, err
		}
	}

	return use, nil
}

// removeTarget removes what was made for a publication beside its mount: its
// pod's limits, what a runtime was told, and the target path unless it was there
// before. One of them in trouble keeps none of the others.
func (s *Service) removeTarget(use *Use, publication Publication) error {
	err := errors.Join(s.unlimit(publication), s.withdraw(use, publication.TargetPath))
	if publication.Made {
		err = errors.Join(err, s.removeMade(publication.TargetPath))
	}

	return err
}

// removeMade removes a target path that was made for a publication. What has
// content by now is somebody else's.
func (s *Service) removeMade(target string) error {
	place, err := s.places.Find(target)
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
