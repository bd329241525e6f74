package access

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// RawDevice is what raw-block and direct volumes have in common: their image is attached to
// a loop device until they are unstaged, and nothing is mounted from it on the host.
type RawDevice struct {
	*Targets

	loops *loop.Loops
}

// Unstage detaches all devices of the volume.
func (r RawDevice) Unstage(ctx context.Context, v *staged.Volume) error {
	return r.devices.DetachAll(ctx, v)
}

// IsStaged returns false for a device that was open at its detach: it is detached with its
// last user.
func (r RawDevice) IsStaged(v *staged.Volume) (bool, error) {
	attachment, attached, err := r.devices.Raw().Attachment(v.VolumeID)

	return attached && !attachment.AutoClear, observe.Unknown(err, v, "attached")
}

// IsInUse is true, too, while a device is detached with its last user.
func (r RawDevice) IsInUse(v *staged.Volume) (bool, error) {
	_, attached, err := r.devices.Raw().Attachment(v.VolumeID)

	return attached, observe.Unknown(err, v, "attached")
}

// Expand lets the devices take the size of the image; their user grows what is on them.
func (r RawDevice) Expand(_ context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	numbers, err := r.devices.Raw().Get(v.VolumeID)
	if err != nil {
		return 0, err
	}

	if numbers.Staged == device.None {
		return 0, goneFrom(v, path)
	}

	// The size that counts is the last one, of the staging's device.
	both := []int{numbers.ReadOnly, numbers.Staged}
	if numbers.ReadOnly == device.None {
		both = both[1:]
	}

	return r.devices.Resize(both, asked)
}

// Stats returns the size of the device, without free space: only the volume's user knows it.
func (r RawDevice) Stats(_ context.Context, v *staged.Volume, _ *mount.Target) (Stats, error) {
	held, err := r.devices.Raw().Found(v.VolumeID)
	if err != nil {
		return Stats{}, err
	}

	status, attached, err := r.loops.Status(held.Staged)
	if err != nil {
		return Stats{}, err
	}

	if !attached || status.Sequence != held.StagedSequence {
		return Stats{}, errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not attached any more", v.VolumeID)
	}

	return Stats{Usage: mount.Usage{Bytes: mount.Amount{Total: status.SizeBytes}}}, nil
}

// Devices implements Access.
func (r RawDevice) Devices(v *staged.Volume) ([]int, error) {
	held, err := r.devices.Raw().Get(v.VolumeID)

	var numbers []int

	for _, number := range []int{held.Staged, held.ReadOnly} {
		if number != device.None {
			numbers = append(numbers, number)
		}
	}

	return numbers, err
}

// DeviceOf implements Access.
func (r RawDevice) DeviceOf(v *staged.Volume, publication staged.Publication) (int, error) {
	held, err := r.devices.Raw().Get(v.VolumeID)
	if publication.ReadOnly && !v.IsReadOnly() || held.Staged == device.None {
		return held.ReadOnly, err
	}

	return held.Staged, err
}

// AddFreezeTargets adds the devices, to be synced, of a volume that may be written.
func (r RawDevice) AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error {
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
