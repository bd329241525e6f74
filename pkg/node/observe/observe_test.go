package observe_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestIsDirectoryOf(t *testing.T) {
	t.Parallel()

	volume := &staged.Volume{VolumeID: "volume-1"}

	for root, want := range map[string]bool{
		"/pool/volumes/volume-1":          true,
		"/pool/volumes/volume-1//deleted": true,
		"/volume-1":                       true,
		"/pool/volumes/volume-10":         false,
		"/pool/volumes/volume-1/inside":   false,
		"/":                               false,
	} {
		require.Equal(t, want, observe.IsDirectoryOf(volume, mount.Point{Root: root}), root)
	}

	for source, want := range map[string]bool{
		"192.0.2.1:/pool/directories/volume-1": true,
		"192.0.2.1:/":                          false,
	} {
		require.Equal(t, want, observe.IsDirectoryOf(volume, mount.Point{FSType: "nfs4", Root: "/", Source: source}), source)
	}
}

func TestIsDirectMountOf(t *testing.T) {
	t.Parallel()

	volume := &staged.Volume{VolumeID: "volume-1"}
	source := observe.DirectSource("volume-1")

	for name, test := range map[string]struct {
		point mount.Point
		want  bool
	}{
		"the volume's":        {mount.Point{FSType: observe.DirectFSType, Source: source}, true},
		"another volume's":    {mount.Point{FSType: observe.DirectFSType, Source: observe.DirectSource("volume-2")}, false},
		"another filesystem":  {mount.Point{FSType: "ext4", Source: source}, false},
		"another tmpfs":       {mount.Point{FSType: observe.DirectFSType, Source: "tmpfs"}, false},
		"nothing is mounted":  {mount.Point{}, false},
		"the volume's device": {mount.Point{FSType: "devtmpfs", Source: "/dev/loop1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, observe.IsDirectMountOf(volume, test.point), "want: the mount is direct only if it is of the volume's device")
		})
	}
}

func TestIsNoMountTarget(t *testing.T) {
	t.Parallel()

	for _, err := range []error{fs.ErrNotExist, mount.ErrSymlink, mount.ErrWrongType} {
		require.True(t, observe.IsNoMountTarget(fmt.Errorf("find the path: %w", err)), "%v", err)
	}

	for _, err := range []error{nil, fs.ErrPermission, syscall.EIO, errors.New("another error")} {
		require.False(t, observe.IsNoMountTarget(err), "%v", err)
	}
}

func TestAFailedObservationIsUnavailable(t *testing.T) {
	t.Parallel()

	volume := &staged.Volume{VolumeID: "volume-1"}
	require.NoError(t, observe.Unknown(nil, volume, "mounted"))

	err := observe.Unknown(syscall.EIO, volume, "mounted at /target")
	require.ErrorIs(t, err, syscall.EIO)
	errtext.Require(t, err, "it is unknown whether volume volume-1 is mounted at /target")
}

func TestTheNameOfAnImageIsItsVolumes(t *testing.T) {
	t.Parallel()

	require.Equal(t, "volume-1.img", observe.ImageName("volume-1"))
}
