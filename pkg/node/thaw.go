package node

import (
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/touchstone-csi/touchstone/pkg/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool"
)

// thaw also forgets the volume, unless it is frozen still: then the driver's
// next start tries again.
func (s *Service) thaw(volumeID string, root *os.File) error {
	err := filesystem.Thaw(root)
	if err != nil && !errors.Is(err, filesystem.ErrNotFrozen) {
		s.config.Log.Error("a filesystem stays frozen; thaw it (fsfreeze --unfreeze)", "volume", volumeID,
			"path", root.Name(), "error", err)

		return err
	}

	if err != nil {
		err = fmt.Errorf("volume %s was thawed by somebody else while it was copied; try again: %w", volumeID, err)
	}

	return errors.Join(err, s.frozen.drop(volumeID))
}

// thawLeft thaws what a driver that was killed has left frozen.
func (s *Service) thawLeft() {
	for _, left := range s.frozen.all() {
		err := s.thawAnywhere(left)
		if err == nil {
			err = s.frozen.drop(left.VolumeID)
		}

		if err != nil {
			s.config.Log.Error("a filesystem may still be frozen; thaw it (fsfreeze --unfreeze)",
				"volume", left.VolumeID, "error", err)
		}
	}
}

// thawAnywhere thaws the volume where its record says it is mounted, or else at
// its device: a frozen filesystem outlives its last mount.
func (s *Service) thawAnywhere(left *Frozen) error {
	if use, known := s.uses.get(left.VolumeID); known {
		root, _, err := s.openRoot(use)
		if err != nil {
			return err
		}

		if root != nil {
			return s.thawAt(left, root)
		}
	}

	attached, err := s.loops.Attachments()
	if err != nil {
		return err
	}

	for _, status := range attached {
		if path.Base(status.BackingPath) == left.VolumeID+pool.ImageSuffix && !status.ReadOnly {
			return s.thawDevice(left, status.Path)
		}
	}

	return nil
}

// thawDevice mounts the device where nobody sees it. That is a second mount of
// the filesystem that is frozen.
func (s *Service) thawDevice(left *Frozen, device string) error {
	tree, err := mount.Mount(device, left.FSType, mount.Options{})
	if err != nil {
		return err
	}
	defer tree.Close()

	root, err := tree.Open()
	if err != nil {
		return err
	}

	return s.thawAt(left, root)
}

func (s *Service) thawAt(left *Frozen, root *os.File) error {
	defer root.Close()

	err := filesystem.Thaw(root)
	if errors.Is(err, filesystem.ErrNotFrozen) {
		return nil
	}

	if err == nil {
		s.config.Log.Warn("what a killed driver had left frozen was thawed", "volume", left.VolumeID)
	}

	return err
}
