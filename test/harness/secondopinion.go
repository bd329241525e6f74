package harness

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	mountutils "k8s.io/mount-utils"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// RequireMountsAgree requires that k8s.io/mount-utils, which the kubelet uses, lists the mounts beneath a
// directory that the driver sees there, finds each of them mounted, and refers to the same other mounts
// of what is mounted there.
func RequireMountsAgree(t *testing.T, directory string) {
	t.Helper()

	type line struct{ path, source, fsType string }

	var own, theirs []line

	seen, err := mount.List()
	require.NoError(t, err)

	last := map[string]mount.Point{}

	for _, each := range seen {
		if strings.HasPrefix(each.Path, directory+"/") {
			own = append(own, line{each.Path, each.Source, each.FSType})
			last[each.Path] = each
		}
	}

	reference := &mountutils.Mounter{}

	listed, err := reference.List()
	require.NoError(t, err)

	for _, each := range listed {
		if strings.HasPrefix(each.Path, directory+"/") {
			theirs = append(theirs, line{each.Path, each.Device, each.Type})
		}
	}

	require.ElementsMatch(t, theirs, own, "want: the mounts that mount-utils lists")

	for path, point := range last {
		is, err := reference.IsMountPoint(path)
		require.NoError(t, err)
		require.True(t, is, "want: mount-utils finds %s mounted", path)

		refs, err := reference.GetMountRefs(path)
		require.NoError(t, err)

		var others []string

		for _, each := range seen {
			if each.ID != point.ID && [2]uint32{each.Major, each.Minor} == [2]uint32{point.Major, point.Minor} && each.Root == point.Root {
				others = append(others, each.Path)
			}
		}

		require.ElementsMatch(t, refs, others, "want: the other mounts of %s that mount-utils refers to", path)
	}
}
