package mount_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func ioctl(file *os.File, request uintptr, argument *uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(unsafe.Pointer(argument)))
	if errno != 0 {
		return errno
	}

	return nil
}

func TestMountIsVisibleOnceAttached(t *testing.T) {
	t.Parallel()

	device := ext4Device(t)
	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")

	tree, err := mount.Mount(device, "ext4", flags(t))
	require.NoError(t, err)

	defer tree.Close()

	requireNotMounted(t, target)

	root, err := tree.OpenRoot()
	require.NoError(t, err)

	names, err := root.Readdirnames(-1)
	require.NoError(t, err)
	require.Equal(t, []string{"lost+found"}, names)
	require.NoError(t, root.Close())

	require.NoError(t, tree.Attach(target))

	point := requireMounted(t, target)
	require.Equal(t, device, point.Source)
	require.Equal(t, "ext4", point.FSType)

	require.ErrorIs(t, tree.Attach(target), mount.ErrAttached)

	_, err = tree.OpenRoot()
	require.ErrorIs(t, err, mount.ErrAttached)
	tree.Close()
	requireMounted(t, target)

	writeFile(t, target.Path()+"/file", "data")
	require.NoError(t, target.Unmount())
	require.NoFileExists(t, target.Path()+"/file")

	attach(t, device, "ext4", target)

	content, err := os.ReadFile(target.Path() + "/file")
	require.NoError(t, err)
	require.Equal(t, "data", string(content))
}

func TestClosedTreeReleasesTheDevice(t *testing.T) {
	t.Parallel()

	device := ext4Device(t)

	tree, err := mount.Mount(device, "ext4", flags(t))
	require.NoError(t, err)

	_, err = unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	require.ErrorIs(t, err, unix.EBUSY)

	tree.Close()
	tree.Close()

	// A child that another test is just forking has a copy of the tree's descriptor.
	require.Eventually(t, func() bool {
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Close(fd)
		}

		return err == nil
	}, time.Minute, time.Millisecond, "want: the closed tree releases the device")
}

func TestMountTakesFlags(t *testing.T) {
	t.Parallel()

	device := ext4Device(t)
	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")

	for _, test := range []struct {
		given               []string
		options, superNames []string
	}{
		{nil, []string{"rw", "relatime"}, []string{"rw"}},
		{[]string{"defaults", "_netdev", "nofail", "x-mine=1"}, []string{"rw", "relatime"}, []string{"rw"}},
		{[]string{"noatime", "nodev", "nosuid", "noexec"}, []string{"rw", "nosuid", "nodev", "noexec", "noatime"}, nil},
		{[]string{"noatime,nodiratime,nosymfollow"}, []string{"rw", "noatime", "nodiratime", "nosymfollow"}, nil},
		{[]string{"nodev", "dev", "noatime", "atime"}, []string{"rw", "relatime"}, nil},
		{[]string{"noatime", "strictatime"}, []string{"rw"}, nil},
		{[]string{"ro"}, []string{"ro", "relatime"}, []string{"ro"}},
		{[]string{"ro", "rw"}, []string{"rw", "relatime"}, []string{"rw"}},
		{
			[]string{"sync", "dirsync", "lazytime", "data=journal", "commit=7"},
			[]string{"rw", "relatime"},
			[]string{"sync", "dirsync", "lazytime", "data=journal", "commit=7"},
		},
	} {
		attach(t, device, "ext4", target, test.given...)

		point := requireMounted(t, target)
		require.Equal(t, test.options, point.Options, "%v", test.given)
		require.Subset(t, point.SuperOptions, test.superNames, "%v", test.given)
		require.NoError(t, target.Unmount())
	}
}

func TestMountErrorQuotesTheFilesystem(t *testing.T) {
	t.Parallel()

	device := ext4Device(t)

	_, err := mount.Mount(device, "ext4", flags(t, "nosuchflag"))
	require.ErrorIs(t, err, mount.ErrMountFlag)
	errtext.Require(t, err, "nosuchflag")
	errtext.Require(t, err, "Unknown parameter")
	errtext.Require(t, err, device)

	_, err = mount.Mount(device, "ext4", flags(t, "data=verysecret"))
	require.ErrorIs(t, err, mount.ErrMountFlag)
	errtext.Require(t, err, "data")
	require.NotContains(t, err.Error(), "verysecret")

	_, err = mount.Mount(device, "nosuchfs", flags(t))
	require.ErrorIs(t, err, mount.ErrKernelUnsupported)
	errtext.Require(t, err, "nosuchfs")

	_, err = mount.Mount(loopDevice(t, 1<<20), "ext4", flags(t))
	require.ErrorIs(t, err, unix.EINVAL)
	require.NotErrorIs(t, err, mount.ErrMountFlag, "the flags are not to blame")

	_, err = mount.Mount(filepath.Join(t.TempDir(), "missing"), "ext4", flags(t))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMountOfADeviceInUseFails(t *testing.T) {
	t.Parallel()

	device := ext4Device(t)

	first, err := mount.Mount(device, "ext4", flags(t))
	require.NoError(t, err)

	defer first.Close()

	_, err = mount.Mount(device, "ext4", flags(t, "ro"))
	require.ErrorIs(t, err, mount.ErrBusy)
}

func TestBindIsReadOnlyDespiteAnEarlierWriter(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	staging, target := findDir(t, dirs, dir+"/staging"), findDir(t, dirs, dir+"/target")
	mountTmpfs(t, staging.Path())

	writer, err := os.Create(staging.Path() + "/file")
	require.NoError(t, err)

	defer writer.Close()

	attachBind(t, staging, target, "ro")

	point := requireMounted(t, target)
	require.True(t, point.ReadOnly, "want: the mount is read-only")
	require.False(t, point.SuperReadOnly, "staging must stay writable")

	_, err = writer.WriteString("before and after")
	require.NoError(t, err)

	content, err := os.ReadFile(target.Path() + "/file")
	require.NoError(t, err)
	require.Equal(t, "before and after", string(content))

	for name, attempt := range map[string]func() error{
		"open":     func() error { return os.WriteFile(target.Path()+"/file", nil, 0) },
		"create":   func() error { return os.WriteFile(target.Path()+"/new", nil, 0o600) },
		"remove":   func() error { return os.Remove(target.Path() + "/file") },
		"truncate": func() error { return os.Truncate(target.Path()+"/file", 0) },
		"chmod":    func() error { return os.Chmod(target.Path()+"/file", 0o777) },
		"mkdir":    func() error { return os.Mkdir(target.Path()+"/dir", 0o750) },
		"rename":   func() error { return os.Rename(target.Path()+"/file", target.Path()+"/other") },
		"link":     func() error { return os.Link(target.Path()+"/file", target.Path()+"/other") },
		"through staging, across": func() error {
			return os.Rename(staging.Path()+"/file", target.Path()+"/other")
		},
	} {
		err := attempt()
		require.Truef(t, isAny(err, unix.EROFS, unix.EXDEV), "%s: %v", name, err)
	}

	// A writable bind of the same staging is independent of it.
	other := findDir(t, dirs, dir+"/other")
	attachBind(t, staging, other)
	writeFile(t, other.Path()+"/new", "data")
	require.FileExists(t, target.Path()+"/new")
}

func TestBindTakesOnlyMountFlags(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	staging, target := findDir(t, dirs, dir+"/staging"), findDir(t, dirs, dir+"/target")
	require.NoError(t, unix.Mount("scratch", staging.Path(), "tmpfs", unix.MS_NODEV|unix.MS_NOATIME, ""))

	for _, test := range []struct{ given, want []string }{
		{nil, []string{"rw", "nodev", "noatime"}},
		{[]string{"rw"}, []string{"rw", "nodev", "noatime"}},
		{[]string{"relatime", "dev"}, []string{"rw", "relatime"}},
		{[]string{"strictatime", "ro"}, []string{"ro", "nodev"}},
		{[]string{"atime", "noatime", "noexec"}, []string{"rw", "nodev", "noexec", "noatime"}},
		{[]string{"data=ordered", "sync", "nosuid"}, []string{"rw", "nosuid", "nodev", "noatime"}},
	} {
		attachBind(t, staging, target, test.given...)

		point := requireMounted(t, target)
		require.Equal(t, test.want, point.Options, "%v", test.given)
		require.NotContains(t, point.SuperOptions, "sync")
		require.NoError(t, target.Unmount())
	}

	require.Equal(t, []string{"rw", "nodev", "noatime"}, requireMounted(t, staging).Options)
}

func TestBindOmitsMountsBeneath(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	staging, target := findDir(t, dirs, dir+"/staging"), findDir(t, dirs, dir+"/target")
	mountTmpfs(t, staging.Path())
	mountTmpfs(t, makeDir(t, staging.Path(), "beneath"))

	attachBind(t, staging, target)

	beneath := find(t, dirs, target.Path()+"/beneath")
	requireNotMounted(t, beneath)

	require.ErrorIs(t, target.Unmount(), mount.ErrBusy, "a target keeps the mount that it lies on")
	beneath.Close()
	require.NoError(t, target.Unmount())
}

func TestADeviceNodeIsBoundToAFile(t *testing.T) {
	t.Parallel()

	device := loopDevice(t, 1<<20)
	content := bytes.Repeat([]byte("touchstone"), 1000)
	require.NoError(t, os.WriteFile(device, content, 0))

	devices, err := mount.NewAllowedDirs(filepath.Dir(device))
	require.NoError(t, err)

	dir, dirs := allowedDir(t)
	target := find(t, dirs, dir+"/target")
	_, err = target.MakeFile(0o600)
	require.NoError(t, err)

	attachBind(t, find(t, devices, device), target)
	requireMounted(t, target)

	info, err := os.Stat(target.Path())
	require.NoError(t, err)
	require.Equal(t, fs.ModeDevice, info.Mode().Type(), "want: the bind mount is a device")

	made, err := target.MakeFile(0o600)
	require.NoError(t, err, "once more is fine")
	require.False(t, made, "want: the target was there already")

	_, err = target.MakeDir(0o750)
	require.ErrorIs(t, err, mount.ErrWrongType)
	require.ErrorIs(t, target.Remove(), mount.ErrBusy)

	read, err := os.Open(target.Path())
	require.NoError(t, err)

	got := make([]byte, len(content))
	_, err = read.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, content, got)

	require.ErrorIs(t, target.Unmount(), mount.ErrBusy)
	require.NoError(t, read.Close())
	require.NoError(t, target.Unmount())
	require.NoError(t, target.Remove())
}

func TestAttachRefuses(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	staging := findDir(t, dirs, dir+"/staging")
	mountTmpfs(t, staging.Path())
	writeFile(t, dir+"/file", "")
	makeDir(t, dir, "directory")
	require.NoError(t, os.Symlink("directory", dir+"/symlink"))
	require.NoError(t, os.Symlink("nowhere", dir+"/dangling"))

	source, err := staging.Open()
	require.NoError(t, err)

	defer source.Close()

	tree, err := mount.Bind(source, flags(t))
	require.NoError(t, err)

	for name, want := range map[string]error{
		"file": mount.ErrWrongType, "symlink": mount.ErrSymlink, "dangling": mount.ErrSymlink, "nothing": fs.ErrNotExist,
	} {
		require.ErrorIs(t, tree.Attach(find(t, dirs, filepath.Join(dir, name))), want, name)
	}

	requireNotMounted(t, find(t, dirs, dir+"/directory"))
	tree.Close()
	require.ErrorIs(t, tree.Attach(find(t, dirs, dir+"/directory")), mount.ErrAttached)

	node, err := find(t, dirs, dir+"/file").Open()
	require.NoError(t, err)

	defer node.Close()

	tree, err = mount.Bind(node, flags(t))
	require.NoError(t, err)

	defer tree.Close()

	require.ErrorIs(t, tree.Attach(find(t, dirs, dir+"/directory")), mount.ErrWrongType)
}

// The parent's path leads elsewhere by the time of the mount, and of the
// unmount.
func TestAttachAndUnmountStayInTheOpenedDirectory(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	staging := findDir(t, dirs, dir+"/staging")
	mountTmpfs(t, staging.Path())

	victim := findDir(t, dirs, makeDir(t, dir, "victim")+"/target")
	mountTmpfs(t, victim.Path())

	pod := makeDir(t, dir, "pod")
	target := findDir(t, dirs, pod+"/target")

	require.NoError(t, os.Rename(pod, dir+"/moved"))
	require.NoError(t, os.Symlink("victim", pod))

	before := requireMounted(t, victim)
	attachBind(t, staging, target)
	require.Equal(t, before.ID, requireMounted(t, victim).ID, "want: the other mount is not covered")
	require.Equal(t, dir+"/moved/target", requireMounted(t, target).Path)

	require.NoError(t, target.Unmount())
	require.NoError(t, target.Unmount())
	requireNotMounted(t, target)
	require.Equal(t, before.ID, requireMounted(t, victim).ID, "want: the other mount stays")
}

func TestUnmountTakesOnlyTheMountAtTheTarget(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	mounted := findDir(t, dirs, dir+"/mounted")
	mountTmpfs(t, mounted.Path())
	makeDir(t, mounted.Path(), "child")
	require.NoError(t, os.Symlink("mounted", dir+"/symlink"))
	writeFile(t, dir+"/file", "")

	for _, path := range []string{"/mounted/child", "/mounted/nothing", "/symlink", "/file", "/nothing"} {
		require.NoError(t, find(t, dirs, dir+path).Unmount(), path)
		requireMounted(t, mounted)
	}
}

func TestUnmountOfABusyMountFails(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	file, err := os.Create(target.Path() + "/file")
	require.NoError(t, err)
	require.ErrorIs(t, target.Unmount(), mount.ErrBusy)
	requireMounted(t, target)

	require.NoError(t, file.Close())
	require.NoError(t, target.Unmount())
	requireNotMounted(t, target)
}

func TestUnmountAwaitsAChildThatIsBeingForked(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	file, err := os.Create(target.Path() + "/file")
	require.NoError(t, err)
	child.CloseWhileForked(t, file, 300*time.Millisecond)
	require.NoError(t, target.Unmount())
	requireNotMounted(t, target)
}

// A target that cannot be observed must not pass for unmounted.
func TestUnmountOfAClosedTargetFails(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	target := find(t, dirs, dir+"/target")
	target.Close()
	require.ErrorIs(t, target.Unmount(), unix.EBADF)
}

// The kubelet's directory is shared, so that containers see what is mounted.
func TestAttachPropagates(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	shared, peer := makeDir(t, dir, "shared"), makeDir(t, dir, "peer")
	mountTmpfs(t, shared)
	require.NoError(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
	require.NoError(t, unix.Mount(shared, peer, "", unix.MS_BIND, ""))

	staging := findDir(t, dirs, dir+"/staging")
	mountTmpfs(t, staging.Path())

	target := findDir(t, dirs, shared+"/target")
	attachBind(t, staging, target, "ro")

	seen := find(t, dirs, peer+"/target")
	require.True(t, requireMounted(t, seen).ReadOnly, "want: the mount is read-only")
	seen.Close()

	require.NoError(t, target.Unmount())
	requireNotMounted(t, find(t, dirs, peer+"/target"))
}

func TestSupportedFilesystemsOfTheKernel(t *testing.T) {
	t.Parallel()
	needRoot(t)

	require.NoError(t, mount.CheckSupport("tmpfs"))

	err := mount.CheckSupport("nosuchfs")
	require.ErrorIs(t, err, mount.ErrKernelUnsupported)
	errtext.Require(t, err, "nosuchfs")
}
