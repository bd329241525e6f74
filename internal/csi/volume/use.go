package volume

import (
	"fmt"
	"slices"
	"strings"
)

// Use is how a call uses a volume: its capability and its readonly flag.
type Use struct {
	Capability Capability
	ReadOnly   bool
}

// Differences names in what an asked use differs, with both values; it is empty for the same use.
// Both may leave the filesystem, which is fsType, open or name it. The order of mount flags does not
// count, and their values, which may be sensitive, are not named.
func (u Use) Differences(asked Use, fsType string) string {
	var found []string

	differ := func(what string, is, wanted any) {
		if is != wanted {
			found = append(found, fmt.Sprintf("%s %v, not %v", what, is, wanted))
		}
	}

	has, wants := u.Capability.withFSType(fsType), asked.Capability.withFSType(fsType)

	accessType := map[bool]string{true: "block", false: "mount"}
	differ("access type", accessType[has.Block], accessType[wants.Block])

	if has.Block == wants.Block {
		differ("fs_type", has.FSType, wants.FSType)
	}

	differ("access mode", has.Mode, wants.Mode)
	differ("readonly", u.ReadOnly, asked.ReadOnly)

	if has.MountGroup != wants.MountGroup {
		differ("volume_mount_group", fmt.Sprintf("%q", has.MountGroup), fmt.Sprintf("%q", wants.MountGroup))
	}

	if !slices.Equal(slices.Sorted(slices.Values(has.MountFlags)), slices.Sorted(slices.Values(wants.MountFlags))) {
		found = append(found, fmt.Sprintf("mount_flags that are others (%d, not these %d)", len(has.MountFlags), len(wants.MountFlags)))
	}

	return strings.Join(found, "; ")
}
