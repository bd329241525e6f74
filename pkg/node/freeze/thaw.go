package freeze

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// The pauses between two attempts to thaw a filesystem.
const (
	thawFirstPause = 100 * time.Millisecond
	thawMostPause  = 10 * time.Second
)

// thaw thaws the filesystem and drops its record. If thawing fails, it is retried in the
// background, and by the driver's next start.
func (f *Freezer) thaw(volumeID string, root *os.File) error {
	err := filesystem.Thaw(root)
	if err != nil && !errors.Is(err, filesystem.ErrNotFrozen) {
		f.retryThaw(volumeID, err)

		return err
	}

	if err != nil {
		err = fmt.Errorf("volume %s was thawed by another program while it was copied; try again: %w", volumeID, err)
	}

	return errors.Join(err, f.frozen.DeleteLazily(volumeID))
}

// retryThaw retries until the volume is thawed and its record dropped, or the Freezer is
// closed. Until then the record keeps the volume from being frozen again.
func (f *Freezer) retryThaw(volumeID string, failure error) {
	f.config.Log.Error("a filesystem is still frozen, since thawing it failed; trying again (or: fsfreeze --unfreeze)",
		"volume", volumeID, "error", failure)

	f.retries.Go(func() {
		for pause := thawFirstPause; ; pause = min(2*pause, thawMostPause) {
			select {
			case <-f.closing:
				return
			case <-time.After(pause):
			}

			record, ok := f.frozen.Get(volumeID)
			if !ok || f.thawRecorded(record) == nil {
				return
			}
		}
	})
}

// ThawRecorded thaws all filesystems that a killed driver has left frozen.
func (f *Freezer) ThawRecorded() {
	for _, record := range f.frozen.All() {
		if err := f.thawRecorded(record); err != nil {
			f.retryThaw(record.VolumeID, err)
		}
	}
}

func (f *Freezer) thawRecorded(record *Frozen) error {
	if err := f.thawAnywhere(record); err != nil {
		return err
	}

	return f.frozen.DeleteLazily(record.VolumeID)
}

// thawAnywhere thaws the volume where it is mounted, or else at its device: a frozen
// filesystem outlives its last mount.
func (f *Freezer) thawAnywhere(record *Frozen) error {
	root, err := f.config.OpenRoot(record.VolumeID)
	if err != nil {
		return err
	}

	if root != nil {
		return f.ThawRoot(record.VolumeID, root)
	}

	attached, err := f.config.Loops.Attachments()
	if err != nil {
		return err
	}

	for _, attachment := range attached {
		if path.Base(attachment.BackingPath) == record.VolumeID+layout.ImageSuffix && !attachment.ReadOnly {
			return f.ThawDevice(record.VolumeID, record.FSType, attachment.Number, mount.Options{})
		}
	}

	return nil
}

// ThawDevice thaws the filesystem on a device that is not mounted any more: a frozen filesystem, and its
// device, outlive its last mount. It was mounted with the options; without a filesystem in use on the
// device it does nothing.
func (f *Freezer) ThawDevice(volumeID, fsType string, number int, options mount.Options) error {
	device, err := f.config.Loops.Open(number)
	if err != nil {
		return err
	}
	defer device.Close()

	claimed, err := filesystem.IsClaimed(device.Name())
	if err != nil || !claimed {
		return err
	}

	// A detached mount of the device shares the superblock with the mount that is frozen.
	tree, err := mount.Mount(device.Name(), fsType, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}

	return f.ThawRoot(volumeID, root)
}

// ThawRoot thaws the filesystem, unless it is not frozen, and closes its root.
func (f *Freezer) ThawRoot(volumeID string, root *os.File) error {
	defer root.Close()

	err := filesystem.Thaw(root)
	if errors.Is(err, filesystem.ErrNotFrozen) {
		return nil
	}

	if err != nil {
		return err
	}

	f.config.Log.Warn("thawed a filesystem that was left frozen", "volume", volumeID)

	return nil
}
