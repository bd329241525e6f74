// Package demo_test runs `touchstone demo` as a person would, also one who
// interrupts it, and searches with the kernel for leftovers.
package demo_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// binary is built once for all tests.
var binary string

func TestMain(m *testing.M) {
	// A mount that other tests of the machine can see is one that they can copy
	// into a namespace of theirs, and so keep busy.
	namespace.Enter()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "touchstone-demo-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer os.RemoveAll(dir)

	// Also for the user that is not root.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	binary = filepath.Join(dir, "touchstone")

	if err := child.BuildDriver(binary); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return m.Run()
}

// run is one demo. onLine is called with each line of its output and its
// number from 1.
func run(t *testing.T, dir string, onLine func(process *os.Process, number int, line string)) (code int, out, stderr string) {
	t.Helper()

	command := child.Command(t, binary, "demo", "--dir", dir)

	var complaints strings.Builder
	command.Stderr = &complaints

	pipe, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())

	var (
		all   strings.Builder
		lines = bufio.NewScanner(pipe)
	)

	for number := 1; lines.Scan(); number++ {
		all.WriteString(lines.Text() + "\n")

		if onLine != nil {
			onLine(command.Process, number, lines.Text())
		}
	}

	return exitCode(t, command.Wait()), all.String(), complaints.String()
}

func exitCode(t *testing.T, err error) int {
	t.Helper()

	if err == nil {
		return 0
	}

	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)

	return exit.ExitCode()
}

func requireNothingLeft(t *testing.T, dir string) {
	t.Helper()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	require.NoError(t, err)
	require.Empty(t, mounts, "mounts")
	requireNoLoopDevices(t, dir)

	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files, "files")

	require.Empty(t, processesNaming(t, dir), "processes")
}

// requireNoLoopDevices requires that no loop device has an image below dir.
func requireNoLoopDevices(t *testing.T, dir string) {
	t.Helper()

	images, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)

	for _, image := range images {
		text, err := os.ReadFile(image)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) {
			continue // Another's, detached since.
		}

		require.NoError(t, err)
		require.NotContains(t, string(text), dir, image)
	}
}

// processesNaming finds those with the directory in their command line.
func processesNaming(t *testing.T, dir string) []string {
	t.Helper()

	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)

	var found []string

	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err == nil && strings.Contains(string(text), dir) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}

	return found
}

// workDir has a short path: a socket lies in it.
func workDir(t *testing.T) string {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("needs root: the demo mounts filesystems and attaches loop devices")
	}

	dir, err := os.MkdirTemp("", "demo-test-") //nolint:usetesting // t.TempDir's path is too long for a socket.
	require.NoError(t, err)
	// Not RemoveAll: it would delete data in a mount that a broken demo left.
	t.Cleanup(func() { _ = os.Remove(dir) })

	return dir
}

func TestEveryStepSucceeds(t *testing.T) {
	dir := workDir(t)

	code, out, stderr := run(t, dir, nil)
	t.Log("\n" + out)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\n\d+ steps, all held, \d+\.\d s\n$`, out)
	require.NotContains(t, out, "✗")
	requireNothingLeft(t, dir)

	for _, call := range []string{
		"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeGetVolumeStats",
		"ControllerExpandVolume", "NodeExpandVolume", "kill -9", "ListVolumes", "NodeUnpublishVolume",
		"NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume",
		"CreateSnapshot", "ListSnapshots", "GetMetadataDelta", "GetMetadataAllocated", "CreateVolumeGroupSnapshot",
		"GetVolumeGroupSnapshot", "DeleteSnapshot", "DeleteVolumeGroupSnapshot",
	} {
		require.Contains(t, out, call)
	}
}

// margin is how many lines before its end a demo still has enough to do for a
// signal to find it running.
const margin = 30

func TestInterruptedDemoCleansUp(t *testing.T) {
	times := 6
	if given := os.Getenv("TOUCHSTONE_DEMO_INTERRUPTS"); given != "" {
		var err error
		times, err = strconv.Atoi(given)
		require.NoError(t, err)
	}

	// How many lines there are depends on the machine's tools and kernel.
	_, whole, _ := run(t, workDir(t), nil)
	lines := strings.Count(whole, "\n") - margin
	require.Positive(t, lines, whole)

	for seed := range times {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		at := 1 + random.IntN(lines)
		impatient := random.IntN(2) == 0

		t.Run(fmt.Sprintf("line %d of %d", at, lines+margin), func(t *testing.T) {
			dir := workDir(t)

			code, out, stderr := run(t, dir, func(process *os.Process, number int, _ string) {
				// An impatient user presses Ctrl-C again while it cleans up.
				if number == at || impatient && number > at {
					_ = process.Signal(syscall.SIGINT)
				}
			})

			requireNothingLeft(t, dir)
			require.Equal(t, 1, code, out)
			require.Contains(t, stderr, "interrupted")
		})
	}
}

func TestKilledDriverIsNamedAndCleanedUp(t *testing.T) {
	dir := workDir(t)

	var (
		started = regexp.MustCompile(`process (\d+)`)
		driver  int
		killed  bool
	)

	code, out, stderr := run(t, dir, func(_ *os.Process, _ int, line string) {
		if match := started.FindStringSubmatch(line); match != nil && driver == 0 {
			driver, _ = strconv.Atoi(match[1])
		}

		// The end of the driver's log, shown then, contains the same call.
		if strings.Contains(line, "volume mount xfs") && !killed {
			killed = true

			require.NotZero(t, driver, "want: the demo has a driver")
			require.NoError(t, syscall.Kill(driver, syscall.SIGKILL))
		}
	})

	require.Equal(t, 1, code, out)
	require.Contains(t, out, "✗")
	require.Contains(t, stderr, "the driver exited by itself")
	requireNothingLeft(t, dir)
}

func TestClosedOutputEndsTheDemo(t *testing.T) {
	dir := workDir(t)

	command := child.Command(t, binary, "demo", "--dir", dir)
	pipe, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())

	const enough = 20

	lines := bufio.NewScanner(pipe)
	for range enough {
		require.True(t, lines.Scan(), "want: the demo writes another line")
	}

	require.NoError(t, pipe.(io.Closer).Close())
	require.Equal(t, 1, exitCode(t, command.Wait()), "want: a closed pipe ends the demo with 1")
	requireNothingLeft(t, dir)
}

func TestDemoNeedsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}

	const otherUser = 65534

	command := child.Command(t, binary, "demo")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}

	out, err := command.CombinedOutput()
	require.Equal(t, 2, exitCode(t, err), string(out))
	require.Contains(t, string(out), "run it as root")
}
