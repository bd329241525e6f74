package staged

import (
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// MountOptions returns the options of a volume's mounts. A mounted volume has no device nodes that work
// unless its mount flags have "dev"; a raw-block volume's mount is one.
func MountOptions(capability volume.Capability, readOnly bool) (mount.Options, error) {
	options, err := mount.ParseFlags(capability.MountFlags)
	if err != nil {
		return mount.Options{}, err
	}

	if !capability.Block {
		options = options.WithoutDevices()
	}

	if readOnly {
		options = options.WithReadOnly()
	}

	return options, nil
}

// MountOptions returns the options of the mount at the staging path.
func (v *Volume) MountOptions() (mount.Options, error) {
	return MountOptions(v.Capability, v.IsReadOnly())
}
