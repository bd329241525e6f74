package access

import (
	"context"
	"errors"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// The kernel detaches the device of a mounted image with its last user. That may be later than the last
// unmount: a frozen filesystem stays, and other programs may have the device open, or have the volume
// mounted in their mount namespaces. The record of the device says so until it is gone.

// recordDevice records the device that a mounted image is attached to. It does not wait for the disk: a
// power failure takes the device, too.
func (p *Provider) recordDevice(v *staged.Volume, device *loop.Device) error {
	attached := staged.Device{Number: device.Number, Sequence: device.Sequence}
	if v.Device != nil && *v.Device == attached {
		return nil
	}

	changed := v.Clone()
	changed.Device = &attached

	return p.config.Volumes.PutLazily(changed)
}

// Identify returns the volume with the filesystem and the device that are mounted at its staging path.
func (p *Provider) Identify(v *staged.Volume) (*staged.Volume, error) {
	point, mounted, err := p.observe.MountAt(v.StagingPath)
	if err != nil || !mounted {
		return v, err
	}

	device, isImage, err := p.observe.DeviceAt(v, point)
	if err != nil || !isImage {
		return v, err
	}

	found := v.Clone()
	if found.FSType() == "" {
		found.Parameters.FSType = point.FSType
	}

	found.Device = &staged.Device{Number: device.Number, Sequence: device.Sequence}

	return found, nil
}

// RecordMounted records the device of a volume that is found mounted, if its record lacks it.
func (p *Provider) RecordMounted(v *staged.Volume) error {
	if v.Device != nil || !CanFreeze(v) {
		return nil
	}

	found, err := p.Identify(v)
	if err != nil {
		return err
	}

	return p.config.Volumes.PutLazily(found)
}

// leftDevice returns the device of a mounted image as long as it is attached, false where there is none.
func (p *Provider) leftDevice(v *staged.Volume) (loop.Attachment, bool, error) {
	if !CanFreeze(v) {
		return loop.Attachment{}, false, nil
	}

	if v.Device == nil {
		return p.ephemeralDevice(v)
	}

	attachment, attached, err := p.config.Loops.Attachment(v.Device.Number)
	attached = attached && attachment.Sequence == v.Device.Sequence

	return attachment, attached, unknown(err, v, "attached to "+observe.LoopName(v.Device.Number))
}

// ephemeralDevice finds the device by the name of its image, which only this node attaches.
func (p *Provider) ephemeralDevice(v *staged.Volume) (loop.Attachment, bool, error) {
	if !v.Ephemeral {
		return loop.Attachment{}, false, nil
	}

	all, err := p.config.Loops.Attachments()
	for _, each := range all {
		if path.Base(each.BackingPath) == observe.ImageName(v.VolumeID) {
			return each, true, nil
		}
	}

	return loop.Attachment{}, false, unknown(err, v, "attached")
}

// DetachLeft waits until the device of a mounted image that is not mounted any more is gone, and thaws
// the filesystem that keeps it.
func (p *Provider) DetachLeft(ctx context.Context, v *staged.Volume) error {
	left, attached, err := p.leftDevice(v)
	if err != nil || !attached {
		return err
	}

	options, err := MountOptions(v.Capability, v.IsReadOnly())
	if err != nil {
		return err
	}

	err = p.config.Freezer.ThawDevice(v.VolumeID, v.FSType(), left.Number, options.ReadOnly())
	if err != nil && !errors.Is(err, loop.ErrNotAttached) {
		return err
	}

	return p.await(ctx, v, left.Number, left.Sequence, func(ctx context.Context) error {
		return p.config.Loops.AwaitDetached(ctx, left.Number, left.Sequence)
	})
}

// detachForgotten is DetachLeft for devices that no record names, such as those that an earlier release has
// left. The kernel detaches them with their last user. That of another node on this machine stays, since
// the volume is mounted there.
func (p *Provider) detachForgotten(ctx context.Context, v *staged.Volume) error {
	image, err := p.openImage(v, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	found, err := p.config.Loops.Find(image)
	if err != nil {
		return err
	}

	options, err := MountOptions(v.Capability, v.IsReadOnly())
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, forgottenLimit)
	defer cancel()

	for _, each := range found {
		if !each.AutoClear {
			continue
		}

		err := p.config.Freezer.ThawDevice(v.VolumeID, v.FSType(), each.Number, options.ReadOnly())
		if err == nil {
			err = p.config.Loops.AwaitDetached(ctx, each.Number, each.Sequence)
		}

		if err != nil && !errors.Is(err, loop.ErrNotAttached) {
			return err
		}
	}

	return nil
}

// forgottenLimit bounds the wait for a device that may be another node's.
const forgottenLimit = time.Second

// IsLeft reports whether the device of a mounted image is attached although the volume is not mounted.
func (p *Provider) IsLeft(v *staged.Volume) (bool, error) {
	_, attached, err := p.leftDevice(v)

	return attached, err
}

// endUse thaws what another program has left frozen of a volume that is about to be unmounted: a frozen
// filesystem outlives its last mount. Then it waits for a growth that is under way, which has the mount
// open.
func (p *Provider) endUse(ctx context.Context, v *staged.Volume, at *mount.Target) error {
	root, _, err := p.openMounted(v, at.Path())
	if err != nil && !errors.Is(err, unix.EIO) { // which an XFS that has shut down returns for everything
		return err
	}

	if root != nil {
		if err := p.config.Freezer.ThawRoot(v.VolumeID, root); err != nil {
			return err
		}
	}

	return p.growths.wait(ctx, v.VolumeID, detachLimit)
}
