package holder_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// firstLoop is beyond the loop devices of the machine and of other tests.
const firstLoop = 787_000

func TestMain(m *testing.M) {
	faults.ServeIfAsked()
	os.Exit(namespace.Main(m))
}

func TestProcessIsFoundByItsWorkingDirectory(t *testing.T) {
	dir := mounted(t)
	requireNone(t, dir)

	started := waiting(t, exec.Command("sleep", "inf"), dir)

	found, err := holder.OfMount(dir)
	require.NoError(t, err)
	require.Equal(t, []int{started}, pids(found))
	require.Equal(t, "process "+strconv.Itoa(started)+" (sleep) has it open", described(found))
}

// TestMountNamespaceIsFound by its table of mounts.
func TestMountNamespaceIsFound(t *testing.T) {
	dir := mounted(t)
	started := waiting(t, exec.Command("unshare", "--mount", "sh", "-c", "echo; exec sleep inf"), "/")

	var stat unix.Stat_t
	require.NoError(t, unix.Stat(dir, &stat))
	require.NoError(t, unix.Unmount(dir, 0))

	found, err := holder.OfDevice(stat.Dev)
	require.NoError(t, err)
	require.Equal(t, []int{started}, pids(found))
	require.Equal(t, dir, found[0].Mount)
	require.NotZero(t, found[0].MountNamespace, "want: the holder has the mount namespace")
	require.Contains(t, described(found), "has it mounted at "+dir)
}

// TestLoopDeviceIsFound: its file is in the filesystem, which it keeps mounted without a process.
func TestLoopDeviceIsFound(t *testing.T) {
	dir := mounted(t)
	requireNone(t, dir)

	image := filepath.Join(dir, "image")
	require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))

	output, err := child.Command(t, "losetup", "--find", "--show", image).Output()
	require.NoError(t, err)

	device := strings.TrimSpace(string(output))
	detach := func() error { return exec.Command("losetup", "--detach", device).Run() }
	t.Cleanup(func() { _ = detach() })

	found, err := holder.OfMount(dir)
	require.NoError(t, err)
	require.Equal(t, []holder.Process{{Device: device}}, found)
	require.True(t, found[0].IsRunning(), "want: the holder still runs")
	require.Equal(t, "block device "+device+" is made of it", described(found))

	require.NoError(t, detach())
	require.Eventually(t, func() bool { return !found[0].IsRunning() }, await.Limit, time.Millisecond, "want: the holder has ended")
	requireNone(t, dir)
}

func TestDescribeWithoutAProcess(t *testing.T) {
	require.Contains(t, described(nil), "no process visible here")
}

func TestFurtherHoldersAreCounted(t *testing.T) {
	require.Contains(t, described(make([]holder.Process, 5)), ", 2 more")
}

// TestAHangingSearchBlocksNoCaller: a filesystem hangs that has the image of a loop device. Neither the
// search that it blocks nor a later one blocks the caller.
func TestAHangingSearchBlocksNoCaller(t *testing.T) {
	dir := mounted(t)
	served := faults.Serve(t)

	image, err := os.Create(filepath.Join(served.Path, "hanging.img"))
	require.NoError(t, err)
	require.NoError(t, image.Truncate(1<<20))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)
	require.NoError(t, image.Close())
	require.NoError(t, os.Remove(image.Name()), "so that no cache answers for it")
	t.Cleanup(func() {
		require.NoError(t, device.Close())
		require.NoError(t, loops.DetachSame(context.WithoutCancel(t.Context()), device.Status))
	})

	ofMount := func() ([]holder.Process, error) { return holder.OfMount(dir) }
	require.Contains(t, holder.Describe(ofMount), "no process visible here")

	served.Inject(t, faults.Fault{Ops: faults.Names, Hang: true})

	for _, want := range []string{"the search does not end", "another search does not end"} {
		began := time.Now()
		require.Equal(t, "its users are unknown: "+want, holder.Describe(ofMount))
		require.Less(t, time.Since(began), faults.Longest/2, "want: the caller does not wait for the filesystem")
	}

	served.Release(t)
	require.Eventually(t, func() bool { return strings.Contains(holder.Describe(ofMount), "no process visible here") },
		await.Limit, time.Millisecond, "want: later searches end again")
}

// described is the message about what a search has found.
func described(found []holder.Process) string {
	return holder.Describe(func() ([]holder.Process, error) { return found, nil })
}

func mounted(t *testing.T) string {
	t.Helper()
	namespace.NeedRoot(t)

	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	return dir
}

func requireNone(t *testing.T, dir string) {
	t.Helper()

	found, err := holder.OfMount(dir)
	require.NoError(t, err)
	require.Empty(t, found, "want: the mount has no holder")
}

// waiting starts a command in a directory, waits for its first line if it is a shell, and
// returns its PID.
func waiting(t *testing.T, command *exec.Cmd, dir string) int {
	t.Helper()

	command.Dir = dir

	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(command))
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})

	if len(command.Args) > 2 {
		_, err = output.Read(make([]byte, 1))
		require.NoError(t, err)
	}

	return command.Process.Pid
}

func pids(found []holder.Process) []int {
	all := make([]int, 0, len(found))
	for _, each := range found {
		all = append(all, each.PID)
	}

	return all
}
