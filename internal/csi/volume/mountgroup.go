package volume

import (
	"fmt"
	"math"
	"strconv"
)

// MountGroupID returns the numeric group id of MountGroup. Error: ErrCapability.
func (c Capability) MountGroupID() (uint32, error) {
	const bits = 32

	group, err := strconv.ParseUint(c.MountGroup, 10, bits)
	// The kernel reads the highest one as "leave the group as it is".
	if err != nil || group == math.MaxUint32 {
		return 0, fmt.Errorf("%w: volume_mount_group %q is not the number of a group", ErrCapability, c.MountGroup)
	}

	return uint32(group), nil
}
