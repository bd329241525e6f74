package node

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// stageDirect makes the volume's filesystem fit for a guest and attaches its
// device, last: as long as that has not been done, it is not staged.
func (s *Service) stageDirect(ctx context.Context, use *staged.Volume) error {
	if err := s.checkNoGuest(use); err != nil {
		return err
	}

	made, err := filesystem.ByName(use.FSType(), s.config.Run)
	if err != nil {
		return rpc.Invalid("volume_capability: %w", err)
	}

	if err := s.checkFree(use); err != nil {
		return err
	}

	// Before the filesystem is given it: a controller on its own may enlarge the image
	// at any time.
	size, err := s.imageBytes(use)
	if err != nil {
		return err
	}

	fresh, err := s.formatIfBlank(ctx, use, made)

	switch {
	case err != nil:
		return err
	case fresh:
		s.checker.RecordFormatted(ctx, use)
	default:
		if err := s.prepareImage(ctx, use, made); err != nil {
			return err
		}
	}

	if err := s.filled(ctx, use, size); err != nil {
		return err
	}

	_, err = s.attachBlock(ctx, use, use.IsReadOnly())

	return err
}

func (s *Service) imageBytes(use *staged.Volume) (int64, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return 0, err
	}

	return place.Size(pool.Object{ID: use.VolumeID, Backing: volume.BackingImage})
}

// filled records that the filesystem has that much of the device.
func (s *Service) filled(ctx context.Context, use *staged.Volume, bytes int64) error {
	changed := use.Clone()
	changed.FilledBytes = bytes

	return s.stagedVolumes.Put(ctx, changed)
}

// prepareImage makes the filesystem sound and lets it take all of its image, through
// a device that goes with the process, whenever that dies. Nobody sees it mounted.
func (s *Service) prepareImage(ctx context.Context, use *staged.Volume, used filesystem.Filesystem) (err error) {
	device, err := s.attachImage(ctx, use, false)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, s.detachAfter(ctx, use, device)) }()

	if err := s.makeSound(ctx, use, used, device); err != nil {
		return err
	}

	return fill(ctx, used, device, mount.Options{})
}

// detachAfter returns when the device is gone, so that the image can be attached
// anew.
func (s *Service) detachAfter(ctx context.Context, use *staged.Volume, device *loop.Device) error {
	status, attached, err := s.loops.Status(device.Number)
	err = errors.Join(err, device.Close())

	if attached {
		err = errors.Join(err, s.detached(context.WithoutCancel(ctx), use, status))
	}

	return err
}
