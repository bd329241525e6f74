package access

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// FindDevices finds the devices of raw-block and direct volumes after a restart. It must be
// called once, after the records are loaded.
func (p *Provider) FindDevices() error {
	attached, err := p.config.Loops.Attachments()
	if err != nil {
		return err
	}

	p.findByName(attached)
	p.findRenamed(attached)

	return nil
}

// findByName finds the devices by the names of their images, so that it also finds those of
// a deleted image.
func (p *Provider) findByName(attached []loop.Attachment) {
	for _, attachment := range attached {
		id := strings.TrimSuffix(path.Base(attachment.BackingPath), layout.ImageSuffix)

		v, known := p.config.Volumes.Get(id)
		if !known || !v.ExposesRawDevice() {
			continue
		}

		p.devices.add(v.VolumeID, attachment.Number, attachment.Sequence, attachment.ReadOnly && !v.IsReadOnly())
	}
}

// findRenamed finds the devices of volumes whose images have another name by now. If it fails
// for a volume, its devices are searched for again when they are needed.
func (p *Provider) findRenamed(attached []loop.Attachment) {
	for _, v := range p.config.Volumes.All() {
		if !v.ExposesRawDevice() || p.devices.recorded(v.VolumeID).deviceNumbers != noDevices() {
			continue
		}

		if err := p.findByPublication(v, attached); err != nil {
			p.config.Log.Error("the devices of a volume could not be found", "volume", v.VolumeID, "error", err)
			p.devices.addNotFound(v.VolumeID)
		}
	}
}

// findAgain is findRenamed for one volume.
func (p *Provider) findAgain(volumeID string) error {
	v, known := p.config.Volumes.Get(volumeID)
	if !known {
		return nil
	}

	attached, err := p.config.Loops.Attachments()
	if err != nil {
		return err
	}

	return p.findByPublication(v, attached)
}

// findByPublication finds the devices through the publications and the device slot, and
// compares the image's name at the attachment.
func (p *Provider) findByPublication(v *staged.Volume, attached []loop.Attachment) error {
	candidates, err := p.candidateNumbers(v)
	if err != nil {
		return err
	}

	for _, number := range candidates {
		status, isAttached, err := p.config.Loops.Status(number)
		if errors.Is(err, loop.ErrBackingUnresponsive) && v.Slot != NoDevice && number == p.config.Loops.NumberOfSlot(v.Slot) {
			// The number is only preferred for this volume: another program has it (decision 0025).
			continue
		}

		if err != nil {
			return err
		}

		if !isAttached || status.AttachedAs != observe.ImageName(v.VolumeID) {
			continue
		}

		// The volume's second device has the same image.
		isOf := func(each loop.Attachment) bool { return each.Number == number }
		at := slices.IndexFunc(attached, isOf)

		for _, each := range attached {
			if at >= 0 && each.BackingPath == attached[at].BackingPath {
				p.devices.add(v.VolumeID, each.Number, each.Sequence, each.ReadOnly && !v.IsReadOnly())
			}
		}
	}

	return nil
}

// candidateNumbers returns the numbers that the volume's devices may have: the preferred one
// of its slot, those in assignments, and those whose nodes are bound to target paths.
func (p *Provider) candidateNumbers(v *staged.Volume) ([]int, error) {
	var numbers []int

	if v.Slot != NoDevice {
		numbers = append(numbers, p.config.Loops.NumberOfSlot(v.Slot))
	}

	for _, publication := range v.Publications {
		number, assigned, err := p.assignedNumber(v, publication)
		if err != nil {
			return nil, err
		}

		if assigned {
			numbers = append(numbers, number)
		}

		point, mounted, err := p.observe.MountAt(publication.TargetPath)
		if err != nil {
			return nil, err
		}

		if number, isLoop := point.LoopDevice(); mounted && isLoop {
			numbers = append(numbers, number)
		}
	}

	return numbers, nil
}
