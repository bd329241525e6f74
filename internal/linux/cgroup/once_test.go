package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// setVariable makes the test binary set limits in a tree of cgroups.
	setVariable = "TOUCHSTONE_QOS_SET"
	onceCgroup  = "kubepods/pod" + podUID
)

var (
	onceDevice = cgroup.Device{Major: 7, Minor: 5}
	former     = cgroup.Limits{ReadBytesPerSecond: 1, WriteBytesPerSecond: 2, ReadIOPS: 3, WriteIOPS: 4}
	wanted     = cgroup.Limits{ReadBytesPerSecond: 4096, WriteBytesPerSecond: 8192, ReadIOPS: 5, WriteIOPS: 4}
	ruleFiles  = []string{
		"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
		"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
	}
)

// onTree returns an operation of a limiter for the cgroups in a directory. Its end returns what was
// wrong: a success with another answer, or a failure without its cause.
func onTree(run func(limiter *cgroup.Limiter) (wrong, err error)) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		limiter := cgroup.NewLimiter(directory, quiet())

		var all error

		return func() error {
			wrong, err := run(limiter)
			if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
				wrong = fmt.Errorf("not the cause of the failure: %w", err)
			}

			all = errors.Join(all, wrong)

			return err
		}, func() error { return errors.Join(all, limiter.Close()) }, nil
	}
}

// limited returns an error unless the pod's limits are the expected ones.
func limited(limiter *cgroup.Limiter, want cgroup.Limits) (wrong, err error) {
	got, err := limiter.Get(podUID, onceDevice)
	if err == nil && got != want {
		wrong = fmt.Errorf("limits are %v instead of %v", got, want)
	}

	return wrong, err
}

var onceOperations = map[string]syscallfault.Operation{
	"set": onTree(func(limiter *cgroup.Limiter) (wrong, err error) {
		if err := limiter.Set(podUID, onceDevice, wanted); err != nil {
			return nil, err
		}

		return limited(limiter, wanted)
	}),
	"remove": onTree(func(limiter *cgroup.Limiter) (wrong, err error) {
		if err := limiter.Remove(podUID, onceDevice); err != nil {
			return nil, err
		}

		return limited(limiter, cgroup.Limits{})
	}),
}

// lines are the rules of v1 for limits, by the file.
func lines(limits cgroup.Limits) []string {
	all := make([]string, 0, len(ruleFiles))
	for _, each := range []int64{limits.ReadBytesPerSecond, limits.WriteBytesPerSecond, limits.ReadIOPS, limits.WriteIOPS} {
		all = append(all, fmt.Sprintf("%s %d", onceDevice, each))
	}

	return all
}

// prepareV1 makes a pod with a container, and their rules. The files keep what is written to them.
func prepareV1(t *testing.T, directory string) {
	t.Helper()

	write(t, "", directory, "blkio", ruleFiles[0])

	for i, line := range lines(former) {
		for _, each := range []string{"", "container"} {
			write(t, line, directory, "blkio", onceCgroup, each, ruleFiles[i])
		}
	}
}

func requireV1(limits cgroup.Limits) func(t *testing.T, directory string) {
	return func(t *testing.T, directory string) {
		t.Helper()

		for i, line := range lines(limits) {
			for _, each := range []string{"", "container"} {
				require.Equal(t, line, read(t, directory, "blkio", onceCgroup, each, ruleFiles[i]), "%s of %q", ruleFiles[i], each)
			}
		}
	}
}

func prepareV2(t *testing.T, directory string) {
	t.Helper()
	write(t, "io\n", directory, "cgroup.controllers")
	write(t, "7:5 rbps=1 wbps=2 riops=3 wiops=4\n", directory, onceCgroup, "io.max")
}

// requireV2 requires one of the lines.
func requireV2(lines ...string) func(t *testing.T, directory string) {
	return func(t *testing.T, directory string) {
		t.Helper()
		require.Contains(t, lines, read(t, directory, onceCgroup, "io.max"))
	}
}

// TestEachCallFailsOnce has each call fail once that is made for the limits of a pod. Its failure is the
// one that is reported, and the former limits hold until the call is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, c := range map[string]*syscallfault.Case{
		"set of v1":    {Prepare: prepareV1, Failed: requireAllOrNothing(wanted), Verify: requireV1(wanted)},
		"remove of v1": {Prepare: prepareV1, Failed: requireAllOrNothing(cgroup.Limits{}), Verify: requireV1(cgroup.Limits{})},
		"set of v2":    {Prepare: prepareV2, Verify: requireV2("7:5 rbps=4096 wbps=8192 riops=5 wiops=4")},
		// A write that fails leaves the file empty here, which is no limit, too.
		"remove of v2": {Prepare: prepareV2, Verify: requireV2("7:5 rbps=max wbps=max riops=max wiops=max", "")},
	} {
		c.Operation, _, _ = strings.Cut(name, " ")
		c.Reported = []string{"openat", "read", "write", "getdents64", "fstatat"} // not fstat, for the size of a buffer
		c.Lossy = []string{"*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*"}
		// What follows the cgroups of pods reads the state of each file that is written.
		c.Except = regexp.MustCompile("^fstatat .*kubepods/")

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}

// requireAllOrNothing requires the former limits in each cgroup, or the new ones if a call after the
// change has failed.
func requireAllOrNothing(after cgroup.Limits) func(t *testing.T, directory string) {
	return func(t *testing.T, directory string) {
		t.Helper()

		if last := read(t, directory, "blkio", onceCgroup, "container", ruleFiles[0]); last == lines(after)[0] {
			requireV1(after)(t, directory)
		} else {
			requireV1(former)(t, directory)
		}
	}
}

// TestAFailureOfTheUndoIsReported has a write to a container fail, and the write after it that puts the
// former limits of the pod back.
func TestAFailureOfTheUndoIsReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		undo syscall.Errno
		want []string
	}{
		"it fails":              {unix.ENOSPC, []string{"input/output error", "put the former limits back", "no space left on device"}},
		"the cgroup is removed": {unix.ENODEV, []string{"input/output error"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			prepareV1(t, directory)

			command := child.Command(t, "/proc/self/exe")
			command.Env = append(os.Environ(), setVariable+"="+directory)

			var output strings.Builder

			command.Stderr = &output

			failed := false
			pod := filepath.Join(directory, "blkio", onceCgroup)

			tracer, err := syscallfault.Start(command, func(call *syscallfault.Call) syscall.Errno {
				switch {
				case call.Name != "write":
					return 0
				case !failed && filepath.Dir(call.Path) == filepath.Join(pod, "container"):
					failed = true

					return unix.EIO
				case failed && filepath.Dir(call.Path) == pod:
					return test.undo
				}

				return 0
			})
			require.NoError(t, err)
			require.Error(t, command.Wait(), "want: the limits are not set")
			tracer.Wait()

			for _, each := range test.want {
				require.Contains(t, output.String(), each)
			}

			require.Equal(t, len(test.want) > 1, strings.Contains(output.String(), "back"), "%s", output.String())
		})
	}
}

// setIfAsked sets limits, and ends the process, in that of the test above.
func setIfAsked() {
	directory := os.Getenv(setVariable)
	if directory == "" {
		return
	}

	limiter := cgroup.NewLimiter(directory, quiet())

	if err := errors.Join(limiter.Set(podUID, onceDevice, wanted), limiter.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	os.Exit(0)
}
