package observe_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// firstLoop is beyond the loop devices of the machine and of other tests.
const firstLoop = 789_000

// fixture is an Observer of a directory, and an image that is attached.
type fixture struct {
	*observe.Observer

	t    *testing.T
	root string
	// linked is a symlink to root, as the kubelet's directory may be.
	linked string
	image  string
	device *loop.Device
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	namespace.NeedRoot(t)

	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	return fixtureIn(t, root)
}

func fixtureIn(t *testing.T, root string) *fixture {
	t.Helper()

	linked := filepath.Join(t.TempDir(), "linked")
	require.NoError(t, os.Symlink(root, linked))

	dirs, err := mount.NewAllowedDirs(root, linked)
	require.NoError(t, err)

	f := &fixture{t: t, root: root, linked: linked, image: filepath.Join(root, "one.img")}
	image, err := os.Create(f.image)
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(16<<20))

	output, err := child.Command(t, "mkfs.ext4", "-q", "-b", "4096", f.image).CombinedOutput()
	require.NoError(t, err, string(output))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	f.Observer = observe.New(dirs, loops)
	f.device, err = loops.Attach(t.Context(), image, loop.AttachOptions{BlockSize: 4096, AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.device.Close()) })

	return f
}

// mount mounts at the name, a directory or, for a bind of a file, a file, until the end of the test.
func (f *fixture) mount(name, source, fsType string, flags uintptr) string {
	f.t.Helper()

	path := filepath.Join(f.root, name)

	info, err := os.Stat(source)
	if err == nil && !info.IsDir() && flags&unix.MS_BIND != 0 {
		require.NoError(f.t, os.WriteFile(path, nil, 0o600))
	} else {
		require.NoError(f.t, os.MkdirAll(path, 0o700))
	}

	require.NoError(f.t, unix.Mount(source, path, fsType, flags, ""))
	f.t.Cleanup(func() { require.NoError(f.t, unix.Unmount(path, unix.MNT_DETACH)) })

	return path
}

func named(id string, parameters volume.Parameters) *staged.Volume {
	return &staged.Volume{VolumeID: id, Parameters: parameters}
}

// TestMountedVolumesAreFound by the names of their directories and images.
func TestMountedVolumesAreFound(t *testing.T) {
	f := newFixture(t)
	image, directory := volume.Parameters{Backing: volume.BackingImage}, volume.Parameters{Backing: volume.BackingDirectory}
	direct := volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}
	stored := filepath.Join(f.root, "pool", "one")
	file, link := filepath.Join(f.root, "file"), filepath.Join(f.root, "link")

	require.NoError(t, os.MkdirAll(stored, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(f.root, "empty"), 0o700))
	require.NoError(t, os.Symlink(stored, link))
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	for name, test := range map[string]struct {
		path       string
		parameters volume.Parameters
	}{
		"image":      {f.mount("staged", f.device.Path, "ext4", 0), image},
		"raw device": {f.mount("raw", f.device.Path, "", unix.MS_BIND), image},
		"directory":  {f.mount("target", stored, "", unix.MS_BIND), directory},
		"direct":     {f.mount("direct", observe.DirectSource("one"), observe.DirectFSType, 0), direct},
	} {
		mounted := func(id, path string) (bool, bool) {
			found, err := f.IsMountedAt(named(id, test.parameters), path)
			require.NoError(t, err, name)

			covered, err := f.IsCoveredAt(named(id, test.parameters), path)
			require.NoError(t, err, name)

			return found, covered
		}

		found, covered := mounted("one", test.path)
		require.True(t, found && covered, "want: the %s is found", name)

		found, covered = mounted("two", test.path)
		require.False(t, found || covered, "want: another %s is not found", name)

		for _, path := range []string{filepath.Join(f.root, "empty"), filepath.Join(f.root, "missing"), link, filepath.Join(file, "beneath")} {
			found, covered = mounted("one", path)
			require.False(t, found || covered, "want: the %s is not found at %s", name, path)
		}

		if info, err := os.Stat(test.path); err == nil && info.IsDir() {
			require.NoError(t, unix.Mount("over", test.path, "tmpfs", 0, ""))

			found, covered = mounted("one", test.path)
			require.False(t, found, "want: the %s is not visible", name)
			require.True(t, covered, "want: the %s is found beneath the other mount", name)

			_, covered = mounted("one", filepath.Join(f.linked, filepath.Base(test.path)))
			require.True(t, covered, "want: the %s is found through a symlink, too", name)
			require.NoError(t, unix.Unmount(test.path, 0))
		}

		_, err := f.IsMountedAt(named("one", test.parameters), "/proc")
		rpccode.Require(t, err, codes.Unavailable)
		_, err = f.IsCoveredAt(named("one", test.parameters), "/proc")
		rpccode.Require(t, err, codes.Unavailable)
	}
}

// TestDevicesAreFoundByTheNameOfTheirImage, which may have been changed since the attachment.
func TestDevicesAreFoundByTheNameOfTheirImage(t *testing.T) {
	f := newFixture(t)
	path := f.mount("staged", f.device.Path, "ext4", 0)
	has := func(id string, number int) bool {
		found, err := f.HasImage(named(id, volume.Parameters{Backing: volume.BackingImage}), number)
		require.NoError(t, err)

		return found
	}
	deviceAt := func(id string) (int, bool) {
		point, mounted, err := f.MountAt(path)
		require.NoError(t, err)
		require.True(t, mounted, "want: something is mounted")

		status, found, err := f.DeviceAt(named(id, volume.Parameters{Backing: volume.BackingImage}), point)
		require.NoError(t, err)

		return status.Number, found
	}

	require.True(t, has("one", f.device.Number), "want: the device has the image")
	require.False(t, has("two", f.device.Number), "want: the device has another image")
	require.False(t, has("one", 1<<20-1), "want: there is no such device")

	number, found := deviceAt("one")
	require.True(t, found, "want: the device is the volume's")
	require.Equal(t, f.device.Number, number, "want: the number of the device")

	_, found = deviceAt("two")
	require.False(t, found, "want: the device is another volume's")

	require.NoError(t, os.Rename(f.image, filepath.Join(f.root, "two.img")))
	require.True(t, has("one", f.device.Number), "want: the image had the name when it was attached")
	require.True(t, has("two", f.device.Number), "want: the image has the name now")

	for _, id := range []string{"one", "two"} {
		_, found = deviceAt(id)
		require.True(t, found, "want: the device is found by the name %s", id)
	}

	require.NoError(t, os.Remove(filepath.Join(f.root, "two.img")))
	require.True(t, has("one", f.device.Number), "want: a deleted image is still attached")

	other := mount.Point{FSType: "tmpfs", Source: "tmpfs"}
	_, found, err := f.DeviceAt(named("one", volume.Parameters{Backing: volume.BackingImage}), other)
	require.NoError(t, err)
	require.False(t, found, "want: a tmpfs has no device")

	mounted, err := f.IsMountOf(named("one", volume.Parameters{Backing: volume.BackingImage}), other)
	require.NoError(t, err)
	require.False(t, mounted, "want: a tmpfs is no image")

	detached := mount.Point{Major: 7, Minor: 1<<20 - 1}
	_, found, err = f.DeviceAt(named("one", volume.Parameters{Backing: volume.BackingImage}), detached)
	require.NoError(t, err)
	require.False(t, found, "want: nothing is attached to the number")
}
