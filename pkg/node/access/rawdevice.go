package access

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// loopMajor is the major number of all loop devices.
const loopMajor = 7

// rawDevice is what raw-block and direct volumes have in common: their image is attached to
// a loop device until they are unstaged, and nothing is mounted from it on the host.
type rawDevice struct{ bound }

// errDeviceTaken is returned where another program has detached the device.
var errDeviceTaken = errdefs.Errorf(errdefs.ErrFailedPrecondition, "its device was taken away; unstage it and stage it again")

// Unstage detaches all devices of the volume.
func (r rawDevice) Unstage(ctx context.Context, v *staged.Volume) error {
	return r.DetachAll(ctx, v)
}

// IsStaged returns false for a device that was open at its detach: it is detached with its
// last user.
func (r rawDevice) IsStaged(v *staged.Volume) (bool, error) {
	attachment, attached, err := r.devices.attachment(v.VolumeID)

	return attached && !attachment.AutoClear, unknown(err, v, "attached")
}

func (r rawDevice) IsInUse(v *staged.Volume) (bool, error) {
	_, attached, err := r.devices.attachment(v.VolumeID)

	return attached, unknown(err, v, "attached")
}

// attachDevice attaches the image and records the device: the one of the staging, or the
// second one of read-only publications.
func (r rawDevice) attachDevice(ctx context.Context, v *staged.Volume, readOnly bool) (int, error) {
	device, err := r.attachByName(ctx, v, readOnly, false)
	if err != nil {
		return NoDevice, err
	}

	if err := device.Close(); err != nil {
		return NoDevice, err
	}

	r.devices.add(v.VolumeID, device.Number, device.Sequence, readOnly && !v.IsReadOnly())

	return device.Number, nil
}

// deviceFor returns a device that allows only what the publication may do.
func (r rawDevice) deviceFor(ctx context.Context, v *staged.Volume, publication staged.Publication) (int, error) {
	if publication.ReadOnly && !v.IsReadOnly() {
		return r.attachDevice(ctx, v, true)
	}

	numbers, err := r.devices.get(v.VolumeID)
	if err != nil || numbers.Staged != NoDevice {
		return numbers.Staged, err
	}

	return NoDevice, errDeviceTaken
}

// Expand lets the devices take the size of the image; their user grows what is on them.
func (r rawDevice) Expand(_ context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	numbers, err := r.devices.get(v.VolumeID)
	if err != nil {
		return 0, err
	}

	if numbers.Staged == NoDevice {
		return 0, goneFrom(v, path)
	}

	// The size that counts is the last one, of the staging's device.
	both := []int{numbers.ReadOnly, numbers.Staged}
	if numbers.ReadOnly == NoDevice {
		both = both[1:]
	}

	return r.resizeDevices(both, asked)
}

// resizeDevices returns the size of the last device; OUT_OF_RANGE if it is not as asked.
func (p *Provider) resizeDevices(numbers []int, asked *csi.CapacityRange) (int64, error) {
	size := int64(0)

	for _, number := range numbers {
		var err error
		if size, err = p.config.Loops.Resize(number); err != nil {
			return 0, err
		}
	}

	if required := asked.GetRequiredBytes(); size < required {
		return 0, errdefs.Errorf(errdefs.ErrOutOfRange,
			"its device has %d bytes, less than required_bytes %d; call ControllerExpandVolume first", size, required)
	}

	if limit := asked.GetLimitBytes(); limit > 0 && size > limit {
		return 0, errdefs.Errorf(errdefs.ErrOutOfRange, "its device has %d bytes, more than limit_bytes %d; a volume never shrinks", size, limit)
	}

	return size, nil
}

// Stats returns the size of the device, without free space: only the volume's user knows it.
func (r rawDevice) Stats(_ context.Context, v *staged.Volume, _ *mount.Target) (Stats, error) {
	held, err := r.devices.found(v.VolumeID)
	if err != nil {
		return Stats{}, err
	}

	status, attached, err := r.config.Loops.Status(held.Staged)
	if err != nil {
		return Stats{}, err
	}

	if !attached || status.Sequence != held.StagedSequence {
		return Stats{}, errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not attached any more", v.VolumeID)
	}

	return Stats{Usage: mount.Usage{Bytes: mount.Amount{Total: status.SizeBytes}}}, nil
}

func (r rawDevice) Devices(v *staged.Volume) ([]int, error) {
	held, err := r.devices.get(v.VolumeID)

	var numbers []int

	for _, number := range []int{held.Staged, held.ReadOnly} {
		if number != NoDevice {
			numbers = append(numbers, number)
		}
	}

	return numbers, err
}

func (r rawDevice) DeviceOf(v *staged.Volume, publication staged.Publication) (int, error) {
	held, err := r.devices.get(v.VolumeID)
	if publication.ReadOnly && !v.IsReadOnly() || err == nil && held.Staged == NoDevice {
		return held.ReadOnly, err
	}

	return held.Staged, err
}

func (r rawDevice) AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error {
	if v.IsReadOnly() {
		return nil
	}

	numbers, err := r.Devices(v)
	if err != nil {
		return err
	}

	targets.Devices = append(targets.Devices, numbers...)

	return nil
}

// DetachAll detaches all devices of a volume that is not staged any more.
func (p *Provider) DetachAll(ctx context.Context, v *staged.Volume) error {
	if err := p.DetachLeft(ctx, v); err != nil {
		return err
	}

	numbers, err := p.devices.get(v.VolumeID)
	if err != nil {
		return err
	}

	for _, number := range []int{numbers.ReadOnly, numbers.Staged} {
		if number == NoDevice {
			continue
		}

		if err := p.detach(ctx, v, number); err != nil {
			return err
		}
	}

	p.devices.drop(v.VolumeID)

	return nil
}

// DetachUnusedReader detaches the second device of a volume that has no read-only
// publication any more.
func (p *Provider) DetachUnusedReader(ctx context.Context, v *staged.Volume) error {
	numbers, err := p.devices.get(v.VolumeID)
	if err != nil || numbers.ReadOnly == NoDevice {
		return err
	}

	for _, publication := range v.Publications {
		if publication.ReadOnly {
			return nil
		}
	}

	if err := p.detach(ctx, v, numbers.ReadOnly); err != nil {
		return err
	}

	p.devices.dropReader(v.VolumeID)

	return nil
}

// Attachments returns the devices that a raw-block or direct volume was attached to, also
// where another image has their numbers by now.
func (p *Provider) Attachments(volumeID string) (Attachments, error) {
	return p.devices.found(volumeID)
}

// HadDevice reports whether a raw-block or direct volume was attached to the number, whatever
// image is attached to it by now.
func (p *Provider) HadDevice(volumeID string, number int) bool {
	return p.devices.had(volumeID, number)
}

// isStaleNode reports whether the mount is a bind of the node of a loop device that has no
// image any more, or had the volume's image before another one: such a bind outlives the
// attachment.
func (p *Provider) isStaleNode(v *staged.Volume, point mount.Point) (bool, error) {
	number, isLoop := point.LoopDevice()
	if !isLoop || point.Major == loopMajor {
		return false, nil
	}

	if p.devices.had(v.VolumeID, number) {
		return true, nil
	}

	_, attached, err := p.config.Loops.Attachment(number)

	return err == nil && !attached, unknown(err, v, "attached to "+observe.LoopName(number))
}
