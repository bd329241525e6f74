package mount_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// observers runs a test with statmount and with mountinfo.
func observers(t *testing.T, test func(t *testing.T, dir string, dirs *mount.AllowedDirs)) {
	t.Helper()
	needRoot(t)

	t.Run("statmount", func(t *testing.T) {
		t.Parallel()

		dir, dirs := allowedDir(t)
		if !mount.ReadsStatmount(dirs) {
			t.Skip("this kernel's statmount does not report enough (Linux 6.13 does)")
		}

		test(t, dir, dirs)
	})
	t.Run("mountinfo", func(t *testing.T) {
		t.Parallel()

		dir, dirs := allowedDir(t)
		mount.ReadMountinfo(dirs)
		test(t, dir, dirs)
	})
}

func TestOpenRootOpensThatMount(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		target := findDir(t, dirs, dir+"/target")

		var layers []mount.Point

		for _, source := range []string{"below", "above"} {
			found, err := target.Layers()
			require.NoError(t, err)
			require.Equal(t, layers, found)

			require.NoError(t, unix.Mount(source, target.Path(), "tmpfs", 0, "size=1m"))
			layers = append(layers, requireMounted(t, target))

			root, err := target.OpenRoot(layers[len(layers)-1])
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(root.Name()+"/"+source, nil, 0o600))

			names, err := root.Readdirnames(-1)
			require.NoError(t, err)
			require.Equal(t, []string{source}, names)
			require.NoError(t, root.Close())
		}

		found, err := target.Layers()
		require.NoError(t, err)
		require.Equal(t, layers, found)

		_, err = target.OpenRoot(layers[0])
		require.ErrorIs(t, err, fs.ErrNotExist, "want: the covered mount is not opened")
		_, err = find(t, dirs, dir+"/nothing").OpenRoot(mount.Point{})
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
}

func TestMountedFindsTheMountAtThePath(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		requireNotMounted(t, find(t, dirs, dir+"/nothing"))

		target := findDir(t, dirs, dir+"/target")
		requireNotMounted(t, target)

		require.NoError(t, os.Symlink("target", dir+"/symlink"))
		require.NoError(t, unix.Mount("scratch", target.Path(), "tmpfs", unix.MS_NODEV|unix.MS_NOATIME, "size=1m,mode=700"))
		makeDir(t, target.Path(), "child")

		point := requireMounted(t, target)
		require.Equal(t, target.Path(), point.Path)
		require.Equal(t, "tmpfs", point.FSType)
		require.Equal(t, "scratch", point.Source)
		require.Equal(t, "/", point.Root)
		require.Equal(t, []string{"rw", "nodev", "noatime"}, point.Options)
		require.Equal(t, "rw", point.SuperOptions[0])
		require.True(t, point.HasSuperOption("mode=700"), "%v", point.SuperOptions)
		require.False(t, point.HasSuperOption("emergency_ro"), "want: no error has made the filesystem read-only")
		require.False(t, point.ReadOnly || point.SuperReadOnly, "want: the mount is writable")
		require.NotZero(t, point.ID, "want: the mount has an id")

		var stat unix.Stat_t
		require.NoError(t, unix.Stat(target.Path(), &stat))
		require.Equal(t, stat.Dev, unix.Mkdev(point.Major, point.Minor), "want: the mount has the device of its filesystem")

		requireNotMounted(t, find(t, dirs, target.Path()+"/child"))
		requireNotMounted(t, find(t, dirs, dir+"/symlink"))
	})
}

func TestMountedReportsBothKindsOfReadOnly(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		target := findDir(t, dirs, dir+"/target")
		mountTmpfs(t, target.Path())
		require.NoError(t, unix.Mount("", target.Path(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))

		point := requireMounted(t, target)
		require.True(t, point.ReadOnly, "want: the mount is read-only")
		require.False(t, point.SuperReadOnly, "want: the filesystem is not read-only")

		require.NoError(t, unix.Mount("", target.Path(), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

		point = requireMounted(t, target)
		require.True(t, point.SuperReadOnly, "want: the filesystem is read-only")
		require.Equal(t, "ro", point.SuperOptions[0])
	})
}

func TestMountedReportsTheRootOfABind(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		mountTmpfs(t, makeDir(t, dir, "pool"))
		source := findDir(t, dirs, dir+"/pool/volume")
		target := findDir(t, dirs, dir+"/target")
		attachBind(t, source, target)

		point := requireMounted(t, target)
		require.Equal(t, "/volume", point.Root)
		require.Equal(t, "scratch", point.Source)
		require.Equal(t, target.Path(), point.Path)
	})
}

func TestMountedWithUnusualNames(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		for _, name := range []string{"a space", "back\\slash", "new\nline", "tab\t", "#hash", "\\040", "größe", "\xff"} {
			target := findDir(t, dirs, filepath.Join(dir, name))
			mountTmpfs(t, target.Path())
			require.Equal(t, target.Path(), requireMounted(t, target).Path, "%q", name)
			require.NoError(t, target.Unmount())
			requireNotMounted(t, target)
		}
	})
}

func TestMountedReportsTheTopOfAStack(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		target := findDir(t, dirs, dir+"/target")

		for layer := range 3 {
			require.NoError(t, unix.Mount(fmt.Sprint("layer", layer), target.Path(), "tmpfs", 0, ""))
		}

		for _, source := range []string{"layer2", "layer1", "layer0"} {
			require.Equal(t, source, requireMounted(t, target).Source)
			require.NoError(t, target.Unmount())
		}

		requireNotMounted(t, target)
		require.NoError(t, target.Unmount(), "once more is fine")
	})
}

func TestMountedReportsTheDeviceOfBtrfs(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		device := loopDevice(t, 128<<20, "mkfs.btrfs", "-q")
		target := findDir(t, dirs, dir+"/target")
		attach(t, device, "btrfs", target)

		point := requireMounted(t, target)
		require.Zero(t, point.Major, "want: the mount of a btrfs has an anonymous device")
		require.Equal(t, device, point.Source)
		require.Equal(t, "btrfs", point.FSType)
	})
}

func TestMountedReportsAnEmergencyRemount(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		device := ext4Device(t)
		target := findDir(t, dirs, dir+"/target")
		attach(t, device, "ext4", target, "errors=remount-ro")

		trigger := "/sys/fs/ext4/" + filepath.Base(device) + "/trigger_fs_error"
		if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
			t.Skipf("ext4 cannot be made to fail here: %v", err)
		}

		point := requireMounted(t, target)
		require.True(t, point.SuperReadOnly || point.HasSuperOption("emergency_ro"), "%v", point.SuperOptions)
	})
}

// shutDown has an XFS stop at once.
func shutDown(t *testing.T, target *mount.Target) {
	t.Helper()

	const goingDown = 0x8004587d // XFS_IOC_GOINGDOWN

	root, err := target.OpenDir()
	require.NoError(t, err)

	noFlush := uint32(2)
	require.NoError(t, ioctl(root, goingDown, &noFlush))
	require.NoError(t, root.Close())
}

// The root of such a mount fails each call with EIO, and still it must be found and unmounted.
func TestShutDownXFSIsFoundAndUnmounted(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		device := loopDevice(t, 320<<20, "mkfs.xfs", "-q", "-s", "size=4096")
		target := findDir(t, dirs, dir+"/target")
		attach(t, device, "xfs", target)

		shutDown(t, target)

		_, err := target.Exists()
		require.ErrorIs(t, err, unix.EIO)

		made, err := target.MakeDir(0o750)
		require.NoError(t, err)
		require.False(t, made, "want: the target was there already")

		point := requireMounted(t, target)
		require.Equal(t, device, point.Source)
		require.Equal(t, "xfs", point.FSType)

		require.NoError(t, target.Unmount())
		requireNotMounted(t, target)
		require.NoError(t, target.Remove())
	})
}

// A FUSE mount whose server is gone answers with ENOTCONN.
func TestFUSEWithoutAServerIsFoundAndUnmounted(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Skipf("no FUSE here: %v", err)
		}

		target := findDir(t, dirs, dir+"/target")
		data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
		require.NoError(t, unix.Mount("server", target.Path(), "fuse.test", 0, data))
		require.NoError(t, server.Close())

		point := requireMounted(t, target)
		require.Equal(t, "fuse.test", point.FSType)
		require.Equal(t, "server", point.Source)
		require.NoError(t, target.Unmount())
		requireNotMounted(t, target)
	})
}

func TestBothObserversAgree(t *testing.T) {
	needRoot(t)

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	attach(t, ext4Device(t), "ext4", target, "noatime", "nodiratime", "nosuid", "nodev", "noexec", "sync", "lazytime", "ro")

	fallback, err := mount.NewAllowedDirs(dir)
	require.NoError(t, err)

	mount.ReadMountinfo(fallback)

	one, other := requireMounted(t, target), requireMounted(t, find(t, fallback, target.Path()))
	one.ID, other.ID = 0, 0
	require.Equal(t, other, one)
	require.Subset(t, one.Options, []string{"ro", "noatime", "nodiratime", "nosuid", "nodev", "noexec"})
	require.Subset(t, one.SuperOptions, []string{"ro", "sync", "lazytime"})
}

func TestMountsBeneathAppearElsewhere(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		target := findDir(t, dirs, dir+"/target")
		mountTmpfs(t, target.Path())

		for _, kind := range []struct {
			flag            uintptr
			shared, follows bool
		}{
			{unix.MS_PRIVATE, false, false},
			{unix.MS_SHARED, true, false},
			// A peer group with one member has no slave.
			{unix.MS_SLAVE, false, false},
		} {
			require.NoError(t, unix.Mount("", target.Path(), "", kind.flag, ""))

			point := requireMounted(t, target)
			require.Equal(t, kind.shared, point.Shared, "want: the mount propagates to others as set")
			require.Equal(t, kind.follows, point.Slave, "want: the mount receives from others as set")
		}

		// As a pod's volume with HostToContainer.
		copied := findDir(t, dirs, dir+"/copy")

		require.NoError(t, unix.Mount("", target.Path(), "", unix.MS_SHARED, ""))
		require.NoError(t, unix.Mount(target.Path(), copied.Path(), "", unix.MS_BIND, ""))
		require.NoError(t, unix.Mount("", copied.Path(), "", unix.MS_SLAVE, ""))

		point := requireMounted(t, copied)
		require.False(t, point.Shared, "want: the mount propagates to no other")
		require.True(t, point.Slave, "want: the mount receives from another")
	})
}

func TestTheMountOfAFile(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	beneath := makeDir(t, target.Path(), "a", "b")

	file, err := os.OpenFile(beneath, unix.O_PATH, 0)
	require.NoError(t, err)

	defer file.Close()

	point, err := mount.PointOf(file)
	require.NoError(t, err)
	require.Equal(t, requireMounted(t, target), point)
}

func TestListHasEveryMountOnce(t *testing.T) {
	needRoot(t)

	// More than one call of listmount takes.
	const count = 1200

	dir, _ := allowedDir(t)
	want := []string{dir}
	mountTmpfs(t, dir)

	for number := range count {
		path := makeDir(t, dir, fmt.Sprintf("%04d", number))
		require.NoError(t, unix.Mount(dir, path, "", unix.MS_BIND, ""))

		want = append(want, path)
	}

	for name, list := range map[string]func() ([]mount.Point, error){
		"the kernel's way": mount.List, "mountinfo": mount.ListFromMountinfo,
	} {
		points, err := list()
		require.NoError(t, err)

		got := make([]string, 0, len(points))

		for _, point := range points {
			if slices.Contains(want, point.Path) {
				got = append(got, point.Path)
				require.Equal(t, "scratch", point.Source, name)
			}
		}

		slices.Sort(got)
		require.Equal(t, want, got, name)
	}
}

// TestMountsWithUnusualNames: paths and sources are what the kernel was given, whatever is in them.
func TestMountsWithUnusualNames(t *testing.T) {
	t.Parallel()
	observers(t, func(t *testing.T, dir string, dirs *mount.AllowedDirs) {
		t.Helper()

		for path, source := range map[string]string{
			"no\u00a0break": "x\u00a0y", "line\nbreak": "", "tab\tspace \\040": "a b", "feed\f\v": "-", "-": "#none",
		} {
			target := findDir(t, dirs, filepath.Join(dir, path))
			require.NoError(t, unix.Mount(source, target.Path(), "tmpfs", 0, "size=1m"))

			point := requireMounted(t, target)
			require.Equal(t, []string{filepath.Join(dir, path), source, "tmpfs"}, []string{point.Path, point.Source, point.FSType}, "%q", path)

			listed, err := target.List()
			require.NoError(t, err)
			require.Contains(t, listed, point, "want: %q is in the list", path)
		}
	})
}

// TestTheRootOfNFSIsThePathOnTheServer: the kernel shows "/" as the root of each mount.
func TestTheRootOfNFSIsThePathOnTheServer(t *testing.T) {
	t.Parallel()

	for want, point := range map[string]mount.Point{
		"/export/pool": {FSType: "nfs4", Root: "/", Source: "server:/export/pool"},
		"/old":         {FSType: "nfs", Root: "/", Source: "[fd00::1]:/old"},
		"/images/a":    {FSType: "ext4", Root: "/images/a//deleted", Source: "server:/export"},
	} {
		require.Equal(t, want, point.RootPath())
	}
}
