package device

import (
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

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
