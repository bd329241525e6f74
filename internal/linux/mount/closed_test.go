package mount_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestClosedTargetsFail, and closed files. Each question is an error, without an answer beside.
func TestClosedTargetsFail(t *testing.T) {
	needRoot(t)
	t.Parallel()

	dir, dirs := allowedDir(t)
	target := find(t, dirs, dir+"/target")
	target.Close()

	closed, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for name, ask := range map[string]func() (any, error){
		"Exists":   func() (any, error) { return target.Exists() },
		"MakeDir":  func() (any, error) { return target.MakeDir(0o700) },
		"MakeFile": func() (any, error) { return target.MakeFile(0o600) },
		"Remove":   func() (any, error) { return nil, target.Remove() },
		"Open":     func() (any, error) { return target.Open() },
		"OpenDir":  func() (any, error) { return target.OpenDir() },
		"OpenRoot": func() (any, error) { return target.OpenRoot(mount.Point{}) },
		"Layers":   func() (any, error) { return target.Layers() },
		"Unmount":  func() (any, error) { return nil, target.Unmount() },
		"Usage":    func() (any, error) { return target.Usage() },
		"UsageOf":  func() (any, error) { return mount.UsageOf(closed) },
		"Bind":     func() (any, error) { return mount.Bind(closed, mount.Options{}) },
		"Mounted": func() (any, error) {
			point, mounted, err := target.Mounted()

			return isMounted{point, mounted}, err
		},
	} {
		answer, err := ask()
		require.ErrorIs(t, err, unix.EBADF, name)

		if answer != nil {
			require.Zero(t, answer, name)
		}
	}

	point, err := mount.PointOf(closed)
	errtext.Require(t, err, "find out the mount of "+dir)
	require.Equal(t, mount.Point{}, point)
}

// TestDetachedMountHasNoPoint that could be described: no mount table has it.
func TestDetachedMountHasNoPoint(t *testing.T) {
	t.Parallel()
	needRoot(t)

	tree, err := mount.Mount("source", "tmpfs", flags(t))
	require.NoError(t, err)

	defer tree.Close()

	root, err := tree.OpenRoot()
	require.NoError(t, err)

	defer root.Close()

	point, err := mount.PointOf(root)
	require.EqualError(t, err, "describe the mount of source: no such mount")
	require.Equal(t, mount.Point{}, point)
}
