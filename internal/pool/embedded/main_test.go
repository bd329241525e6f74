package embedded_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	mib = 1 << 20
	// small is near the least size of an XFS, which is above that of a btrfs.
	small  = 320 * mib
	larger = 512 * mib

	// childVariable asks the process to ensure the pool of this directory and to
	// wait for its end.
	childVariable = "TOUCHSTONE_TEST_POOL_IMAGE"
	childReady    = "mounted"
)

func TestMain(m *testing.M) {
	if directory := os.Getenv(childVariable); directory != "" {
		hold(directory)
	}

	syscallfault.ServeIfAsked(onceOperations)
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

// hold ensures a pool as a driver does, and then hangs.
func hold(directory string) {
	var bytes int64
	_, _ = fmt.Sscan(os.Getenv(childVariable+"_BYTES"), &bytes)

	_, err := embedded.Ensure(context.Background(), embedded.Options{
		Directory: directory, Bytes: bytes, Filesystem: os.Getenv(childVariable + "_FS"),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	fmt.Fprintln(os.Stdout, childReady)
	time.Sleep(time.Hour) // not select: without another goroutine the runtime would end the process
}

// onEach runs a test once for each filesystem that an image may have.
func onEach(t *testing.T, test func(t *testing.T, kind string)) {
	t.Helper()

	for _, kind := range embedded.Filesystems() {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// makeFilesystem makes what the package makes, as an administrator does.
func makeFilesystem(t *testing.T, kind, image string) {
	t.Helper()

	switch kind {
	case filesystem.Btrfs:
		tool(t, "mkfs.btrfs", "-q", image)
	default:
		tool(t, "mkfs.xfs", "-q", "-s", "size=4096", image)
	}
}

// requireSound requires that the filesystem's own check finds nothing in the image.
func requireSound(t *testing.T, kind, image string) {
	t.Helper()

	switch kind {
	case filesystem.Btrfs:
		tool(t, "btrfs", "check", "--readonly", image)
	default:
		tool(t, "xfs_repair", "-n", "-f", image)
	}
}

// newDirectory returns emptyDirectory for a pool that is mounted.
func newDirectory(t *testing.T) string {
	t.Helper()
	namespace.NeedRoot(t)

	return emptyDirectory(t)
}

// emptyDirectory returns a directory on the machine's filesystem. Whatever is
// mounted or attached in there at the end is a failure.
func emptyDirectory(t *testing.T) string {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { nothingIsLeft(t, directory) })

	return filepath.Join(directory, "pool")
}

func nothingIsLeft(t *testing.T, directory string) {
	t.Helper()

	for _, device := range devices(t, directory) {
		t.Errorf("still attached: %s to %s", device.BackingPath, device.Path)
	}

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(directory))
	require.NoError(t, err)

	for _, left := range mounts {
		t.Errorf("still mounted: %s", left.Mountpoint)
		require.NoError(t, unix.Unmount(left.Mountpoint, unix.MNT_DETACH))
	}
}

// devices are the loop devices of images below the directory.
func devices(t *testing.T, directory string) []loop.Attachment {
	t.Helper()

	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	var found []loop.Attachment

	for _, each := range all {
		if strings.HasPrefix(each.BackingPath, directory+"/") {
			found = append(found, each)
		}
	}

	return found
}

// ensure is Ensure that must succeed.
func ensure(t *testing.T, kind, directory string, bytes int64) *embedded.Pool {
	t.Helper()

	pool, _ := ensureLogged(t, kind, directory, bytes)

	return pool
}

// ensureLogged is ensure with the log of the pool.
func ensureLogged(t *testing.T, kind, directory string, size int64) (*embedded.Pool, *bytes.Buffer) {
	t.Helper()

	log := &bytes.Buffer{}
	pool, err := embedded.Ensure(t.Context(), embedded.Options{
		Directory: directory, Bytes: size, Filesystem: kind, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	t.Cleanup(func() { end(t, pool) })

	return pool, log
}

// stays is in the log of a pool that is in use when it is closed.
const stays = "the embedded pool stays mounted"

// refused is Ensure that must fail, and leave nothing mounted or attached that
// was not before.
func refused(t *testing.T, kind, directory string, bytes int64, cause error, words ...string) {
	t.Helper()

	before := devices(t, directory)

	_, err := embedded.Ensure(t.Context(), embedded.Options{Directory: directory, Bytes: bytes, Filesystem: kind})
	require.ErrorIs(t, err, cause)
	errtext.Require(t, err, directory)

	for _, word := range words {
		errtext.Require(t, err, word)
	}

	require.Len(t, devices(t, directory), len(before), "want: a refused pool leaves no device")
}

func end(t *testing.T, pool *embedded.Pool) {
	t.Helper()
	require.NoError(t, pool.Close(context.WithoutCancel(t.Context())))
}

// died starts a process that ensures the pool, and kills it once it has.
func died(t *testing.T, kind, directory string, bytes int64) {
	t.Helper()

	command := child.Command(t, "/proc/self/exe")
	command.Env = append(os.Environ(), childVariable+"="+directory, fmt.Sprintf("%s_BYTES=%d", childVariable, bytes), childVariable+"_FS="+kind)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(command))

	said := make([]byte, len(childReady))
	_, err = out.Read(said)
	require.NoError(t, err)
	require.Equal(t, childReady, string(said))
	require.NoError(t, command.Process.Kill())
	errtext.Require(t, command.Wait(), "killed")
}

func mounted(t *testing.T, path string) bool {
	t.Helper()

	is, err := mountinfo.Mounted(path)
	require.NoError(t, err)

	return is
}

// mountedType is the type of the filesystem that is mounted at the path.
func mountedType(t *testing.T, path string) string {
	t.Helper()

	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the directory has one mount")

	return found[0].FSType
}

func write(t *testing.T, path, text string) {
	t.Helper()

	file, err := os.Create(path)
	require.NoError(t, err)

	_, err = file.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

func holds(t *testing.T, path, want string) {
	t.Helper()

	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// total is the size of the filesystem at the path, and of the file, in bytes.
func total(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &stat))

	return int64(stat.Blocks) * stat.Bsize
}

func size(t *testing.T, path string) int64 {
	t.Helper()

	info, err := os.Stat(path)
	require.NoError(t, err)

	return info.Size()
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Stat_t
	require.NoError(t, unix.Stat(path, &stat))

	return stat.Blocks * 512
}

// tool runs a program of the machine.
func tool(t *testing.T, name string, arguments ...string) string {
	t.Helper()

	output, err := child.Command(t, name, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", output)

	return string(output)
}
