package access

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Stage formats or checks the filesystem, and attaches the device last: until then the volume
// is not staged.
func (d directVolume) Stage(ctx context.Context, v *staged.Volume, _ *mount.Target) error {
	err := d.stage(ctx, v)
	if err != nil {
		d.config.Checker.RecordFailure(ctx, v, err)
	}

	return err
}

func (d directVolume) stage(ctx context.Context, v *staged.Volume) error {
	if err := d.CheckNoGuest(v); err != nil {
		return err
	}

	made, err := filesystem.ByName(v.FSType(), d.config.Run)
	if err != nil {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: %w", err)
	}

	if err := d.checkNotAttached(v); err != nil {
		return err
	}

	// Read before the filesystem is grown: a controller in another process may grow the image
	// at any time.
	size, err := d.imageBytes(v)
	if err != nil {
		return err
	}

	fresh, err := d.formatIfBlank(ctx, v, made)

	switch {
	case err != nil:
		return err
	case fresh:
		d.config.Checker.RecordFormatted(ctx, v)
	default:
		if err := d.prepareImage(ctx, v, made); err != nil {
			return err
		}
	}

	if err := d.recordFilledBytes(ctx, v, size); err != nil {
		return err
	}

	_, err = d.attachDevice(ctx, v, v.IsReadOnly())

	return err
}

func (p *Provider) imageBytes(v *staged.Volume) (int64, error) {
	stored, err := p.PoolOf(v)
	if err != nil {
		return 0, err
	}

	return stored.Size(pool.Object{ID: v.VolumeID, Backing: volume.BackingImage})
}

// recordFilledBytes records the size of the device that the filesystem fills.
func (p *Provider) recordFilledBytes(ctx context.Context, v *staged.Volume, bytes int64) error {
	changed := v.Clone()
	changed.FilledBytes = bytes

	return p.config.Volumes.Put(ctx, changed)
}

// prepareImage checks the filesystem and grows it to the size of its image, through a device
// that the kernel detaches with its last user. A mount for that is detached.
func (p *Provider) prepareImage(ctx context.Context, v *staged.Volume, used filesystem.Filesystem) (err error) {
	device, err := p.attachByName(ctx, v, false, true)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, p.closeAndDetach(ctx, v, device)) }()

	return p.checkAndGrow(ctx, v, used, device)
}
