package access

import (
	"context"
	"errors"
	"io/fs"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// RemoveUnrecordedAssignment removes the assignment of a publication that has no record. Unless
// the volume is staged it also detaches its devices, which no later call would find: a direct
// volume is used on one node only.
func (p *Provider) RemoveUnrecordedAssignment(ctx context.Context, id, targetPath string) error {
	lost := &staged.Volume{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}}

	entry, ok, err := p.config.Direct.Root.Get(targetPath)
	if errors.Is(err, kata.ErrUnsafeRoot) {
		return nil // the volume may never have been a direct one
	}

	if err != nil || !ok {
		return unknown(err, lost, "assigned at "+targetPath)
	}

	number, isLoop := mount.Point{Source: entry.Device}.LoopDevice()
	if !isLoop {
		return nil
	}

	_, attached, err := p.config.Loops.Attachment(number)
	if err == nil && attached {
		attached, err = p.isDeviceOf(lost, entry.Device)
		if err == nil && !attached {
			return nil
		}
	}

	if err != nil {
		return unknown(err, lost, "attached to "+observe.LoopName(number))
	}

	if _, known := p.config.Volumes.Get(id); !known {
		if err := p.detachUnrecorded(ctx, lost); err != nil {
			return err
		}
	}

	return p.config.Direct.Root.Remove(targetPath)
}

func (p *Provider) detachUnrecorded(ctx context.Context, lost *staged.Volume) error {
	attached, err := p.config.Loops.Attachments()
	if err != nil {
		return err
	}

	for _, each := range attached {
		found, unseen := p.isDeviceOf(lost, p.config.Loops.Path(each.Number))
		if err = errors.Join(err, unseen); found {
			err = errors.Join(err, p.detach(ctx, lost, each.Number))
		}
	}

	return err
}

// revoke removes a publication whose device is gone: the kernel gives its number to another
// image, and a runtime would give that to the pod.
func (p *Provider) revoke(v *staged.Volume, publication staged.Publication) error {
	p.config.Log.Warn("an assignment is removed, as its device was detached",
		"volume", v.VolumeID, "target", publication.TargetPath)

	err := p.config.Direct.Root.Remove(publication.TargetPath)

	target, missing := p.config.Dirs.Target(publication.TargetPath)
	if errors.Is(missing, fs.ErrNotExist) {
		return err
	}

	if missing != nil {
		return errors.Join(err, missing)
	}
	defer target.Close()

	return errors.Join(err, p.UnmountAllLayers(v, target))
}

// RevokeLostDevices revokes the publications of a direct volume whose devices are gone. The
// caller is in an operation on the volume.
func (p *Provider) RevokeLostDevices(v *staged.Volume) error {
	failures := make([]error, 0, len(v.Publications))

	for _, publication := range v.Publications {
		lost, err := p.IsLostDeviceAssigned(v, publication)
		if lost {
			err = p.revoke(v, publication)
		}

		failures = append(failures, err)
	}

	return errors.Join(failures...)
}

// IsLostDeviceAssigned reports whether a device that is gone is still assigned.
func (p *Provider) IsLostDeviceAssigned(v *staged.Volume, publication staged.Publication) (bool, error) {
	if !v.IsDirect() {
		return false, nil
	}

	_, lost, err := p.lostDevice(v, publication)
	if err != nil || !lost {
		return false, err
	}

	if _, told, err := p.config.Direct.Root.Get(publication.TargetPath); told || err != nil {
		return true, nil //nolint:nilerr // a file that cannot be read may be the assignment
	}

	return p.observe.IsMountedAt(v, publication.TargetPath)
}

// lostDevice returns the number of the publication's device, and whether that is gone.
func (p *Provider) lostDevice(v *staged.Volume, publication staged.Publication) (number int, lost bool, err error) {
	number, err = p.For(v).DeviceOf(v, publication)
	if err != nil || number == NoDevice {
		return number, err == nil, unknown(err, v, "attached")
	}

	_, attached, err := p.config.Loops.Attachment(number)

	return number, err == nil && !attached, unknown(err, v, "attached to "+observe.LoopName(number))
}
