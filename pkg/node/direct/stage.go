package direct

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Stage formats or checks the filesystem, and attaches the device last: until then the volume
// is not staged.
func (d *Access) Stage(ctx context.Context, v *staged.Volume, _ *mount.Target) error {
	err := d.stage(ctx, v)
	if err != nil {
		d.config.Checker.RecordFailure(ctx, v, err)
	}

	return err
}

func (d *Access) stage(ctx context.Context, v *staged.Volume) error {
	if err := d.Guard.CheckNoGuest(v); err != nil {
		return err
	}

	made, err := d.config.Shared.Filesystems.Of(v)
	if err != nil {
		return err
	}

	if err := d.Guard.checkNotAttached(v); err != nil {
		return err
	}

	// Read before the filesystem is grown: a controller in another process may grow the image
	// at any time.
	size, err := d.imageBytes(v)
	if err != nil {
		return err
	}

	fresh, err := d.config.Shared.Filesystems.FormatIfBlank(ctx, v, made)

	switch {
	case err != nil:
		return err
	case fresh:
		d.config.Checker.RecordFormatted(ctx, v)
	default:
		if err := d.config.Shared.Filesystems.Prepare(ctx, v, made); err != nil {
			return err
		}
	}

	if err := d.recordFilledBytes(ctx, v, size); err != nil {
		return err
	}

	_, err = d.config.Devices.AttachRaw(ctx, v, v.IsReadOnly())

	return err
}

func (d *Access) imageBytes(v *staged.Volume) (int64, error) {
	stored, err := d.config.Pools.Of(v)
	if err != nil {
		return 0, err
	}

	return stored.Size(v.Object())
}

// recordFilledBytes records the size of the device that the filesystem fills.
func (d *Access) recordFilledBytes(ctx context.Context, v *staged.Volume, bytes int64) error {
	changed := v.Clone()
	changed.FilledBytes = bytes

	return d.config.Volumes.Put(ctx, changed)
}
