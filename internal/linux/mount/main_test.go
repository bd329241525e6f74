package mount_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(allOnceOperations())
	os.Exit(namespace.Main(m))
}

func needRoot(tb testing.TB) {
	tb.Helper()

	if os.Geteuid() != 0 {
		tb.Skip("mounting needs root")
	}
}

// allowedDir returns an empty directory and the AllowedDirs with only it. What is
// mounted beneath it at the end is unmounted.
func allowedDir(tb testing.TB) (string, *mount.AllowedDirs) {
	tb.Helper()

	dir, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)

	dirs, err := mount.NewAllowedDirs(dir)
	require.NoError(tb, err)

	tb.Cleanup(func() { unmountBeneath(tb, dir) })

	return dir, dirs
}

func unmountBeneath(tb testing.TB, dir string) {
	tb.Helper()

	points, err := mount.List()
	require.NoError(tb, err)

	for _, point := range slices.Backward(points) {
		if point.Path == dir || strings.HasPrefix(point.Path, dir+"/") {
			_ = unix.Unmount(point.Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}

func find(tb testing.TB, dirs *mount.AllowedDirs, path string) *mount.Target {
	tb.Helper()

	target, err := dirs.Target(path)
	require.NoError(tb, err)
	tb.Cleanup(target.Close)

	return target
}

// findDir finds a target and makes a directory there.
func findDir(tb testing.TB, dirs *mount.AllowedDirs, path string) *mount.Target {
	tb.Helper()

	target := find(tb, dirs, path)
	_, err := target.MakeDir(0o750)
	require.NoError(tb, err)

	return target
}

func mountTmpfs(tb testing.TB, path string) {
	tb.Helper()
	needRoot(tb)
	require.NoError(tb, unix.Mount("scratch", path, "tmpfs", 0, "size=1m"))
}

func makeDir(tb testing.TB, path ...string) string {
	tb.Helper()

	dir := filepath.Join(path...)
	require.NoError(tb, os.MkdirAll(dir, 0o750))

	return dir
}

func writeFile(tb testing.TB, path, content string) {
	tb.Helper()
	require.NoError(tb, os.WriteFile(path, []byte(content), 0o600))
}

// flags parses mount flags that are known to be good.
func flags(tb testing.TB, given ...string) mount.Options {
	tb.Helper()

	options, err := mount.ParseFlags(given)
	require.NoError(tb, err)

	return options
}

// loopDevice attaches an image with a filesystem in it. The device detaches
// itself when the test and its mounts let go of it, or when it is killed.
func loopDevice(tb testing.TB, sizeBytes int64, mkfs ...string) string {
	tb.Helper()
	needRoot(tb)

	image := filepath.Join(tb.TempDir(), "image")
	require.NoError(tb, os.WriteFile(image, nil, 0o600))
	require.NoError(tb, os.Truncate(image, sizeBytes))

	if len(mkfs) > 0 {
		run(tb, mkfs[0], append(mkfs[1:], image)...)
	}

	device := strings.TrimSpace(run(tb, "losetup", "--find", "--show", image))
	held, err := os.Open(device)
	require.NoError(tb, err)

	run(tb, "losetup", "--detach", device)
	tb.Cleanup(func() { require.NoError(tb, held.Close()) })

	return device
}

func ext4Device(tb testing.TB) string {
	tb.Helper()

	return loopDevice(tb, 16<<20, "mkfs.ext4", "-q", "-b", "4096")
}

func run(tb testing.TB, name string, args ...string) string {
	tb.Helper()

	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("%s is not installed", name)
	}

	output, err := child.Command(tb, path, args...).CombinedOutput()
	require.NoErrorf(tb, err, "%s %v: %s", name, args, output)

	return string(output)
}

// attach mounts device at target.
func attach(tb testing.TB, device, fsType string, target *mount.Target, given ...string) {
	tb.Helper()

	tree, err := mount.Mount(device, fsType, flags(tb, given...))
	require.NoError(tb, err)

	defer tree.Close()

	require.NoError(tb, tree.Attach(target))
}

// attachBind binds what is at from to the target at.
func attachBind(tb testing.TB, from, at *mount.Target, given ...string) {
	tb.Helper()

	source, err := from.Open()
	require.NoError(tb, err)

	defer source.Close()

	tree, err := mount.Bind(source, flags(tb, given...))
	require.NoError(tb, err)

	defer tree.Close()

	require.NoError(tb, tree.Attach(at))
}

func requireMounted(tb testing.TB, target *mount.Target) mount.Point {
	tb.Helper()

	point, mounted, err := target.Mounted()
	require.NoError(tb, err)
	require.Truef(tb, mounted, "nothing is mounted at %s", target.Path())

	return point
}

func requireNotMounted(tb testing.TB, target *mount.Target) {
	tb.Helper()

	point, mounted, err := target.Mounted()
	require.NoError(tb, err)
	require.Falsef(tb, mounted, "%s is mounted: %+v", target.Path(), point)
}

func isAny(err error, wanted ...error) bool {
	return slices.ContainsFunc(wanted, func(want error) bool { return errors.Is(err, want) })
}
