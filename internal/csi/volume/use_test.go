package volume_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

func TestDifferencesNameBothValues(t *testing.T) {
	t.Parallel()

	mounted := volume.Use{Capability: volume.Capability{FSType: "ext4", MountFlags: []string{"noatime", "secret=1"}, Mode: "SINGLE_NODE_WRITER"}}

	for want, change := range map[string]func(*volume.Use){
		"": func(u *volume.Use) {
			u.Capability.FSType, u.Capability.MountFlags = "", []string{"secret=1", "noatime"}
		},
		"access type mount, not block":   func(u *volume.Use) { u.Capability.Block, u.Capability.FSType = true, "" },
		"fs_type ext4, not xfs":          func(u *volume.Use) { u.Capability.FSType = "xfs" },
		"readonly false, not true":       func(u *volume.Use) { u.ReadOnly = true },
		`volume_mount_group "", not "5"`: func(u *volume.Use) { u.Capability.MountGroup = "5" },
		"access mode SINGLE_NODE_WRITER, not SINGLE_NODE_READER_ONLY; readonly false, not true": func(u *volume.Use) {
			u.Capability.Mode, u.ReadOnly = "SINGLE_NODE_READER_ONLY", true
		},
		"mount_flags that are others (2, not these 2)": func(u *volume.Use) { u.Capability.MountFlags = []string{"noatime", "secret=2"} },
	} {
		asked := mounted
		change(&asked)
		require.Equal(t, want, mounted.Differences(asked, "ext4"))
	}
}
