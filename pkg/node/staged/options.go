package staged

import (
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// MountOptions returns the options of a volume's mounts. A mounted volume has no device nodes that work
// unless its mount flags have "dev"; a raw-block volume's mount is one.
func MountOptions(capability volume.Capability, readOnly bool) mount.Options {
	options := capability.MountOptions()

	if !capability.Block {
		options = options.WithoutDevices()
	}

	if readOnly {
		options = options.WithReadOnly()
	}

	return options
}

// MountOptions returns the options of the mount at the staging path.
func (v *Volume) MountOptions() mount.Options {
	return MountOptions(v.Capability, v.IsReadOnly())
}
