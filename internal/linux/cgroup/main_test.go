package cgroup_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	kibibyte = 1 << 10
	mebibyte = 1 << 20
	// firstLoop is where the loop devices of these tests begin, beyond those of
	// everybody else on the machine.
	firstLoop = 780_000
	// blkio is the v1 hierarchy of this machine, if it has one.
	blkio = cgroup.DefaultCgroupRoot + "/blkio"
	// workVariable makes the test binary the process in a pod.
	workVariable = "TOUCHSTONE_QOS_WORK"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	setIfAsked()

	if work := os.Getenv(workVariable); work != "" {
		if err := runWork(work); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}

		return
	}

	goleak.VerifyTestMain(m)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newLimiter(t *testing.T, root string) *cgroup.Limiter {
	t.Helper()

	limiter := cgroup.NewLimiter(root, quiet())
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })

	return limiter
}

// newLoop attaches an image that has data everywhere.
func newLoop(t *testing.T) *loop.Device {
	t.Helper()

	if os.Getuid() != 0 {
		t.Skip("attaching a loop device needs root")
	}

	image, err := os.Create(filepath.Join(t.TempDir(), "volume.img"))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(16*mebibyte))
	require.NoError(t, unix.Fallocate(int(image.Fd()), 0, 0, 16*mebibyte))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{BlockSize: 4096, PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()

		require.NoError(t, device.Close())
		require.NoError(t, loops.Detach(ctx, device.Number))
	})

	return device
}

func numbers(device *loop.Device) cgroup.Device {
	return cgroup.Device{Major: loop.Major, Minor: uint32(device.Number)}
}

// newBlkio makes a tree of real cgroups that looks like a machine's own, so
// that no kubelet is met. It returns its root and the one of its blkio.
func newBlkio(t *testing.T) (root, base string) {
	t.Helper()

	if _, err := os.Stat(filepath.Join(blkio, "blkio.throttle.read_bps_device")); err != nil {
		t.Skipf("no cgroup v1 blkio here: %v", err)
	}

	if os.Getuid() != 0 {
		t.Skip("making a cgroup needs root")
	}

	base, err := os.MkdirTemp(blkio, "touchstone-test-") //nolint:usetesting // only there are cgroups made
	require.NoError(t, err)
	t.Cleanup(func() { removeCgroups(t, base) })

	root = t.TempDir()
	require.NoError(t, os.Symlink(base, filepath.Join(root, "blkio")))

	return root, base
}

func makeCgroup(t *testing.T, parts ...string) string {
	t.Helper()

	path := filepath.Join(parts...)
	require.NoError(t, os.MkdirAll(path, 0o755))

	return path
}

// removeCgroups takes the innermost first; the files in them are the kernel's.
func removeCgroups(t *testing.T, top string) {
	t.Helper()

	entries, err := os.ReadDir(top)
	require.NoError(t, err)

	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroups(t, filepath.Join(top, entry.Name()))
		}
	}

	require.NoError(t, unix.Rmdir(top))
}

// worker is a process in a cgroup that does direct I/O for a while.
type worker struct {
	t      *testing.T
	run    *exec.Cmd
	stdin  io.WriteCloser
	output *bufio.Reader
}

// newWorker starts a process in the cgroup. Op is read or write, size the bytes
// of one operation.
func newWorker(t *testing.T, cgroup, device, operation string, size int) *worker {
	t.Helper()

	run := child.CommandWithin(t, 5*time.Minute, "/proc/self/exe") // it ends with its input
	run.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", workVariable, device, operation, size))
	run.Stderr = os.Stderr

	stdin, err := run.StdinPipe()
	require.NoError(t, err)

	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		_ = stdin.Close()

		require.NoError(t, run.Wait())
	})
	require.NoError(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(run.Process.Pid)), 0))

	return &worker{t: t, run: run, stdin: stdin, output: bufio.NewReader(stdout)}
}

// operations says how many a second it did for so long.
func (w *worker) operations(duration time.Duration) float64 {
	w.t.Helper()

	_, err := fmt.Fprintln(w.stdin, duration)
	require.NoError(w.t, err)

	line, err := w.output.ReadString('\n')
	require.NoError(w.t, err)

	rate, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
	require.NoError(w.t, err)

	return rate
}

// limited proves that it can't do more than the limit, in operations a second.
func (w *worker) limited(limit float64) {
	w.t.Helper()
	require.Less(w.t, w.operations(2*time.Second), 1.5*limit, "want: the device is as slow as its limit")
}

// free proves that no limit holds it. A machine that is busy with other things
// may have to be asked more than once; with a limit no answer would be so much.
func (w *worker) free(limit float64) {
	w.t.Helper()

	for range 20 {
		if w.operations(300*time.Millisecond) > 3*limit {
			return
		}
	}

	require.Fail(w.t, "it is still limited")
}

// runWork does direct I/O for as long as each line of its input says, and
// answers with the operations a second.
func runWork(work string) error {
	var (
		device, operation string
		size              int
	)

	if _, err := fmt.Sscan(work, &device, &operation, &size); err != nil {
		return err
	}

	file, err := os.OpenFile(device, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer file.Close()

	do := file.ReadAt
	if operation == "write" {
		do = file.WriteAt
	}

	buffer := aligned(size)
	lines := bufio.NewScanner(os.Stdin)

	for lines.Scan() {
		duration, err := time.ParseDuration(lines.Text())
		if err != nil {
			return err
		}

		count, began := 0, time.Now()
		for ; time.Since(began) < duration; count++ {
			if _, err := do(buffer, int64(count*size)%(16*mebibyte)); err != nil {
				return err
			}
		}

		fmt.Fprintln(os.Stdout, float64(count)/time.Since(began).Seconds())
	}

	return lines.Err()
}

// aligned returns a buffer for direct I/O.
func aligned(size int) []byte {
	const alignment = 4096

	buffer := make([]byte, size+alignment)
	skip := alignment - int(uintptr(unsafe.Pointer(&buffer[0]))%alignment)

	return buffer[skip : skip+size]
}
