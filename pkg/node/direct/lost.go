package direct

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// RemoveUnrecorded removes the assignment of a publication that has no record. Unless
// the volume is staged it also detaches its devices, which no later call would find: a direct
// volume is used on one node only.
func (a *Assignments) RemoveUnrecorded(ctx context.Context, id, targetPath string) error {
	lost := &staged.Volume{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}}

	entry, ok, err := a.config.Runtimes.Root.Get(targetPath)
	if errors.Is(err, kata.ErrUnsafeRoot) {
		return nil // the volume may never have been a direct one
	}

	if err != nil || !ok {
		return observe.Unknown(err, lost, "assigned at "+targetPath)
	}

	number, isLoop := mount.Point{Source: entry.Device}.LoopDevice()
	if !isLoop {
		return nil
	}

	_, attached, err := a.config.Loops.Attachment(number)
	if err == nil && attached {
		attached, err = a.guard.isDeviceOf(lost, entry.Device)
		if err == nil && !attached {
			return nil
		}
	}

	if err != nil {
		return observe.Unknown(err, lost, "attached to "+loop.Name(number))
	}

	if _, known := a.config.Volumes.Get(id); !known {
		if err := a.detachUnrecorded(ctx, lost); err != nil {
			return err
		}
	}

	return a.config.Runtimes.Root.Remove(targetPath)
}

func (a *Assignments) detachUnrecorded(ctx context.Context, lost *staged.Volume) error {
	attached, err := a.config.Loops.Attachments()
	if err != nil {
		return err
	}

	for _, each := range attached {
		found, unseen := a.guard.isDeviceOf(lost, a.config.Loops.Path(each.Number))
		if err = errors.Join(err, unseen); found {
			err = errors.Join(err, a.config.Devices.Detach(ctx, lost, each.Number))
		}
	}

	return err
}

// revoke removes a publication whose device is gone: the kernel gives its number to another
// image, and a runtime would give that to the pod.
func (a *Assignments) revoke(v *staged.Volume, publication staged.Publication) error {
	a.config.Log.Warn("an assignment is removed, as its device was detached",
		"volume", v.VolumeID, "target", publication.TargetPath)

	unmount := func(target *mount.Target) error { return a.config.Shared.Targets.UnmountAllLayers(v, target) }

	return errors.Join(a.config.Runtimes.Root.Remove(publication.TargetPath), a.config.Dirs.WithTarget(publication.TargetPath, unmount))
}

// RevokeLost revokes the publications of a direct volume whose devices are gone. The
// caller is in an operation on the volume.
func (a *Assignments) RevokeLost(v *staged.Volume) error {
	failures := make([]error, 0, len(v.Publications))

	for _, publication := range v.Publications {
		lost, err := a.isLostAssigned(v, publication)
		if lost {
			err = a.revoke(v, publication)
		}

		failures = append(failures, err)
	}

	return errors.Join(failures...)
}

// HasLost reports whether a device of the volume that is gone is still assigned.
func (a *Assignments) HasLost(v *staged.Volume) (bool, error) {
	for _, publication := range v.Publications {
		if lost, err := a.isLostAssigned(v, publication); lost || err != nil {
			return lost, err
		}
	}

	return false, nil
}

// isLostAssigned reports whether a device that is gone is still assigned.
func (a *Assignments) isLostAssigned(v *staged.Volume, publication staged.Publication) (bool, error) {
	if !v.IsDirect() {
		return false, nil
	}

	_, lost, err := a.lostDevice(v, publication)
	if err != nil || !lost {
		return false, err
	}

	if _, ok, err := a.config.Runtimes.Root.Get(publication.TargetPath); ok || err != nil {
		return true, nil //nolint:nilerr // a file that cannot be read may be the assignment
	}

	return a.config.Observer.IsMountedAt(v, publication.TargetPath)
}

// lostDevice returns the number of the publication's device, and whether that is gone.
func (a *Assignments) lostDevice(v *staged.Volume, publication staged.Publication) (number int, lost bool, err error) {
	number, err = a.raw.DeviceOf(v, publication)
	if err != nil || number == device.None {
		return number, err == nil, observe.Unknown(err, v, "attached")
	}

	_, attached, err := a.config.Loops.Attachment(number)

	return number, err == nil && !attached, observe.Unknown(err, v, "attached to "+loop.Name(number))
}
