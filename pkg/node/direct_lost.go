package node

import (
	"context"
	"errors"
	"io/fs"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// withdrawLost takes back what a runtime was told of a volume, and no record tells
// of. Unless the volume is staged its devices go, too, which nobody else will ever
// know of: a direct volume is used on one node only.
func (s *Service) withdrawLost(ctx context.Context, id, targetPath string) error {
	lost := &staged.Volume{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}}

	entry, ok, err := s.toldAt(targetPath)
	if errors.Is(err, kata.ErrUnsafeRoot) {
		return nil // of a volume that may never have been a direct one
	}

	if err != nil || !ok {
		return unknown(err, lost, "assigned at "+targetPath)
	}

	number, isLoop := loopNumber(mount.Point{Source: entry.Device})
	if !isLoop {
		return nil
	}

	_, attached, err := s.loops.Attachment(number)
	if err == nil && attached {
		attached, err = s.isDeviceOf(lost, entry.Device)
		if err == nil && !attached {
			return nil
		}
	}

	if err != nil {
		return unknown(err, lost, "attached to "+loopName(number))
	}

	if _, known := s.stagedVolumes.Get(id); !known {
		if err := s.detachLost(ctx, lost); err != nil {
			return err
		}
	}

	return s.config.Direct.Root.Remove(targetPath)
}

func (s *Service) detachLost(ctx context.Context, lost *staged.Volume) error {
	attached, err := s.loops.Attachments()
	if err != nil {
		return err
	}

	for _, each := range attached {
		found, unseen := s.isDeviceOf(lost, s.loops.Path(each.Number))
		if err = errors.Join(err, unseen); found {
			err = errors.Join(err, s.detach(ctx, lost, each.Number))
		}
	}

	return err
}

// revoke makes a publication lead nowhere whose device is gone: the kernel gives
// its number to another image, and a runtime would give that to the pod.
func (s *Service) revoke(use *staged.Volume, publication staged.Publication) error {
	s.config.Log.Warn("a runtime is not told of a device any more that was taken away",
		"volume", use.VolumeID, "target", publication.TargetPath)

	err := s.withdraw(use, publication.TargetPath)

	place, missing := s.places.Target(publication.TargetPath)
	if errors.Is(missing, fs.ErrNotExist) {
		return err
	}

	if missing != nil {
		return errors.Join(err, missing)
	}
	defer place.Close()

	return errors.Join(err, s.clear(use, place))
}

// revokeLost revokes the publications of a volume whose devices have gone.
func (s *Service) revokeLost(ctx context.Context, id string) error {
	return s.onVolume(ctx, id, "revoke", func(context.Context) error {
		use, known := s.stagedVolumes.Get(id)
		if !known {
			return nil
		}

		var failures []error

		for _, publication := range use.Publications {
			lost, err := s.shownLost(use, publication)
			if lost {
				err = s.revoke(use, publication)
			}

			failures = append(failures, err)
		}

		return errors.Join(failures...)
	})
}

// shownLost says whether a runtime is still told of a device that has gone.
func (s *Service) shownLost(use *staged.Volume, publication staged.Publication) (bool, error) {
	if !use.IsDirect() {
		return false, nil
	}

	lost, err := s.deviceLost(use, publication)
	if err != nil || !lost {
		return false, err
	}

	if _, told, err := s.config.Direct.Root.Get(publication.TargetPath); told || err != nil {
		return true, nil //nolint:nilerr // a file that cannot be read is not safe to be taken for another's
	}

	return s.mountedAt(use, publication.TargetPath)
}

func (s *Service) deviceLost(use *staged.Volume, publication staged.Publication) (bool, error) {
	number, err := s.numberOf(use, publication)
	if err != nil || number == none {
		return err == nil, unknown(err, use, "attached")
	}

	_, attached, err := s.loops.Attachment(number)

	return err == nil && !attached, unknown(err, use, "attached to "+loopName(number))
}
