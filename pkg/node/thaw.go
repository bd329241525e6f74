package node

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

const (
	thawFirstPause = 100 * time.Millisecond
	thawMostPause  = 10 * time.Second
)

// thaw also drops the record of the freeze, unless the filesystem is still frozen:
// then thawing is retried in the background, and by the driver's next start.
func (s *Service) thaw(volumeID string, root *os.File) error {
	err := filesystem.Thaw(root)
	if err != nil && !errors.Is(err, filesystem.ErrNotFrozen) {
		s.retryThaw(volumeID, err)

		return err
	}

	if err != nil {
		err = fmt.Errorf("volume %s was thawed by somebody else while it was copied; try again: %w", volumeID, err)
	}

	return errors.Join(err, s.frozen.DeleteLazily(volumeID))
}

// retryThaw retries until the volume is thawed and its record dropped, or the
// service is closed. Until then the record keeps it from being frozen again.
func (s *Service) retryThaw(volumeID string, failure error) {
	s.config.Log.Error("a filesystem is still frozen, since thawing it failed; trying again (or: fsfreeze --unfreeze)",
		"volume", volumeID, "error", failure)

	s.thawing.Go(func() {
		for pause := thawFirstPause; ; pause = min(2*pause, thawMostPause) {
			select {
			case <-s.closing:
				return
			case <-time.After(pause):
			}

			left, ok := s.frozen.Get(volumeID)
			if !ok || s.thawRecorded(left) == nil {
				return
			}
		}
	})
}

// thawLeft thaws what a driver that was killed has left frozen.
func (s *Service) thawLeft() {
	for _, left := range s.frozen.All() {
		if err := s.thawRecorded(left); err != nil {
			s.retryThaw(left.VolumeID, err)
		}
	}
}

func (s *Service) thawRecorded(left *Frozen) error {
	if err := s.thawAnywhere(left); err != nil {
		return err
	}

	return s.frozen.DeleteLazily(left.VolumeID)
}

// thawAnywhere thaws the volume where its record says it is mounted, or else at
// its device: a frozen filesystem outlives its last mount.
func (s *Service) thawAnywhere(left *Frozen) error {
	if use, known := s.stagedVolumes.Get(left.VolumeID); known {
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
		if path.Base(status.BackingPath) == left.VolumeID+layout.ImageSuffix && !status.ReadOnly {
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
		s.config.Log.Warn("thawed a filesystem that was left frozen", "volume", left.VolumeID)
	}

	return err
}
