package access

import "github.com/touchstone-csi/touchstone/pkg/node/staged"

// mounted is what mounted images and directories have in common: the volume is mounted at the
// staging path, and bound from there to the target paths.
type mounted struct{ bound }

func (m mounted) IsStaged(v *staged.Volume) (bool, error) {
	return m.observe.IsMountedAt(v, v.StagingPath)
}

// IsInUse is true, too, while an image that is not mounted any more still has its device.
func (m mounted) IsInUse(v *staged.Volume) (bool, error) {
	if mounted, err := m.IsStaged(v); mounted || err != nil {
		return mounted, err
	}

	return m.IsLeft(v)
}

// bound is what volumes have in common that are published by a bind mount.
type bound struct{ *Provider }
