package device

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Find finds the devices after a restart. It must be
// called once, after the records are loaded.
func (r *Raw) Find() error {
	attached, err := r.config.Loops.Attachments()
	if err != nil {
		return err
	}

	// By the names of their images, so that those of a deleted image are found, too.
	for _, attachment := range attached {
		v, known := r.config.Volumes.Get(strings.TrimSuffix(path.Base(attachment.BackingPath), layout.ImageSuffix))
		if known && v.ExposesRawDevice() {
			r.Add(v.VolumeID, attachment.Number, attachment.Sequence, attachment.ReadOnly && !v.IsReadOnly())
		}
	}

	// The other volumes' images have another name by now, or are not attached. Where the search fails,
	// it is repeated when the devices are needed.
	for _, v := range r.config.Volumes.All() {
		if !v.ExposesRawDevice() || r.recorded(v.VolumeID).Numbers != noNumbers() {
			continue
		}

		if err := r.findByPublication(v, attached); err != nil {
			r.config.Log.Error("the devices of a volume could not be found", "volume", v.VolumeID, "error", err)
			r.change(v.VolumeID, func(a *Attachments) { a.notFound = true })
		}
	}

	return nil
}

// findAgain repeats the search for one volume.
func (r *Raw) findAgain(volumeID string) error {
	v, known := r.config.Volumes.Get(volumeID)
	if !known {
		return nil
	}

	attached, err := r.config.Loops.Attachments()
	if err != nil {
		return err
	}

	return r.findByPublication(v, attached)
}

// findByPublication finds the devices through the publications and the device slot, and
// compares the image's name at the attachment.
func (r *Raw) findByPublication(v *staged.Volume, attached []loop.Attachment) error {
	candidates, err := r.candidateNumbers(v)
	if err != nil {
		return err
	}

	for _, number := range candidates {
		status, isAttached, err := r.config.Loops.Status(number)
		if errors.Is(err, loop.ErrBackingUnresponsive) && v.Slot != staged.NoSlot && number == r.config.Loops.NumberOfSlot(v.Slot) {
			// The number is only preferred for this volume: another program has it (decision 0025).
			continue
		}

		if err != nil {
			return err
		}

		if !isAttached || status.AttachedAs != observe.ImageName(v.ObjectID()) {
			continue
		}

		// The volume's second device has the same image.
		at := slices.IndexFunc(attached, func(each loop.Attachment) bool { return each.Number == number })

		for _, each := range attached {
			if at >= 0 && each.BackingPath == attached[at].BackingPath {
				r.Add(v.VolumeID, each.Number, each.Sequence, each.ReadOnly && !v.IsReadOnly())
			}
		}
	}

	return nil
}

// candidateNumbers returns the numbers that the volume's devices may have: the preferred one
// of its slot, those in assignments, and those whose nodes are bound to target paths.
func (r *Raw) candidateNumbers(v *staged.Volume) ([]int, error) {
	var numbers []int

	if v.Slot != staged.NoSlot {
		numbers = append(numbers, r.config.Loops.NumberOfSlot(v.Slot))
	}

	for _, publication := range v.Publications {
		number, assigned, err := r.config.Assigned(v, publication)
		if err != nil {
			return nil, err
		}

		if assigned {
			numbers = append(numbers, number)
		}

		point, mounted, err := r.config.Observer.MountAt(publication.TargetPath)
		if err != nil {
			return nil, err
		}

		if number, isLoop := point.LoopDevice(); mounted && isLoop {
			numbers = append(numbers, number)
		}
	}

	return numbers, nil
}

// AssignedBy returns what finds the number of the device that is assigned below root by a publication,
// false for none.
func AssignedBy(root *kata.Root) func(v *staged.Volume, publication staged.Publication) (int, bool, error) {
	return func(v *staged.Volume, publication staged.Publication) (int, bool, error) {
		if !v.IsDirect() {
			return None, false, nil
		}

		entry, ok, err := root.Get(publication.TargetPath)
		if err != nil || !ok {
			return None, false, err
		}

		number, isLoop := mount.Point{Source: entry.Device}.LoopDevice()

		return number, isLoop, nil
	}
}
