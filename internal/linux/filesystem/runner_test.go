package filesystem_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func shell(script string) filesystem.Command {
	return filesystem.Command{Tool: "sh", Package: "dash", Args: []string{"-c", script}}
}

func TestAMissingToolNamesItsPackage(t *testing.T) {
	_, err := filesystem.NewRunner().Run(t.Context(), filesystem.Command{Tool: "mkfs.touchstone", Package: "touchstone-progs"})
	require.ErrorIs(t, err, filesystem.ErrToolMissing)

	var missing *filesystem.ToolMissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "touchstone-progs", missing.Package)
	errtext.Require(t, err, "mkfs.touchstone")
	errtext.Require(t, err, "install the package touchstone-progs")
}

func TestToolsAreFoundWithoutAPath(t *testing.T) {
	t.Setenv("PATH", "")

	image := newImage(t, 8*mebibyte)
	require.NoError(t, byName(t, filesystem.Ext4).Make(t.Context(), image.Name(), filesystem.MakeOptions{}))
}

func TestAnExitCodeIsAResult(t *testing.T) {
	result, err := filesystem.NewRunner().Run(t.Context(), shell("echo out; echo err >&2; exit 3"))
	require.NoError(t, err)
	require.Equal(t, filesystem.Result{ExitCode: 3, Output: "out\nerr\n"}, result)
}

func TestLongOutputKeepsItsEnds(t *testing.T) {
	result, err := filesystem.NewRunner().Run(t.Context(),
		shell("echo first; i=0; while [ $i -lt 20000 ]; do echo complaint $i; i=$((i+1)); done; echo last"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(result.Output, "first\n"), "want: the beginning of the output is kept")
	require.True(t, strings.HasSuffix(strings.TrimSpace(result.Output), "last"), "want: the end of the output is kept")
	require.Less(t, len(result.Output), 64<<10, "want: the output is limited")
}

func TestAKilledToolIsAnError(t *testing.T) {
	_, err := filesystem.NewRunner().Run(t.Context(), shell("echo before; kill -9 $$"))
	errtext.Require(t, err, "before")
}

func TestTheEnvironmentIsNotPassedOn(t *testing.T) {
	t.Setenv("SECRET", "secret")

	result, err := filesystem.NewRunner().Run(t.Context(), shell("env; pwd"))
	require.NoError(t, err)
	require.NotContains(t, result.Output, "secret")
	require.Contains(t, result.Output, "LC_ALL=C")
}

func TestTheContextEndsATool(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	require.NoError(t, unix.Mkfifo(started, 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	done := make(chan error, 1)

	go func() {
		_, err := filesystem.NewRunner().Run(ctx, shell("echo >"+started+"; exec sleep 1000"))
		done <- err
	}()

	await.ReadPipe(t, started)
	cancel()
	require.ErrorIs(t, await.Receive(t, done, "the cancelled tool to end"), context.Canceled)
}

func TestUninterruptibleToolOutlivesItsContext(t *testing.T) {
	directory := t.TempDir()
	started, goOn := filepath.Join(directory, "started"), filepath.Join(directory, "go-on")
	require.NoError(t, unix.Mkfifo(started, 0o600))
	require.NoError(t, unix.Mkfifo(goOn, 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	command := shell("echo >" + started + "; read line <" + goOn + "; echo done")
	command.Uninterruptible = true
	results := make(chan filesystem.Result, 1)

	go func() {
		result, _ := filesystem.NewRunner().Run(ctx, command)
		results <- result
	}()

	await.ReadPipe(t, started)
	cancel()
	await.WritePipe(t, goOn, "\n")
	require.Equal(t, filesystem.Result{Output: "done\n"}, await.Receive(t, results, "the tool's result"))
}

// waiting returns a tool that writes its process id to the pipe started and ends when it reads a line
// from the pipe goOn.
func waiting(t *testing.T) (command filesystem.Command, started, goOn string) {
	t.Helper()

	directory := t.TempDir()
	started, goOn = filepath.Join(directory, "started"), filepath.Join(directory, "go-on")
	require.NoError(t, unix.Mkfifo(started, 0o600))
	require.NoError(t, unix.Mkfifo(goOn, 0o600))

	return shell("echo $$ >" + started + "; read line <" + goOn), started, goOn
}

func TestIdleToolHasTheIdlePriority(t *testing.T) {
	for name, idle := range map[string]bool{"idle": true, "as any other": false, "and idle again": true} {
		t.Run(name, func(t *testing.T) {
			command, started, goOn := waiting(t)
			command.Idle = idle
			ended := make(chan error, 1)

			go func() {
				_, err := filesystem.NewRunner().Run(t.Context(), command)
				ended <- err
			}()

			said := await.ReadPipe(t, started)

			process, err := strconv.Atoi(strings.TrimSpace(string(said)))
			require.NoError(t, err)

			ours := priorityOf(t, 0)
			require.NotEqual(t, idlePriority, ours, "want: the test is not idle itself")

			if idle {
				// It gets its priorities when it has begun.
				require.Eventually(t, func() bool { return priorityOf(t, process) == idlePriority }, await.Limit, time.Millisecond, "want: the tool gets the idle priority")
			} else {
				require.Equal(t, ours, priorityOf(t, process))
			}

			await.WritePipe(t, goOn, "\n")
			require.NoError(t, await.Receive(t, ended, "the tool to end"))
		})
	}
}

// TestOutOfMemoryKillsTheTool unless it leaves a half-done filesystem when it is killed.
func TestOutOfMemoryKillsTheTool(t *testing.T) {
	for name, uninterruptible := range map[string]bool{"a tool that may be killed": false, "one that may not": true} {
		t.Run(name, func(t *testing.T) {
			command, started, goOn := waiting(t)
			command.Uninterruptible = uninterruptible
			ended := make(chan error, 1)

			go func() {
				_, err := filesystem.NewRunner().Run(t.Context(), command)
				ended <- err
			}()

			process := strings.TrimSpace(string(await.ReadPipe(t, started)))
			score := func(process string) string {
				text, err := os.ReadFile("/proc/" + process + "/oom_score_adj")
				require.NoError(t, err)

				return strings.TrimSpace(string(text))
			}

			if uninterruptible {
				require.Equal(t, score("self"), score(process))
			} else {
				// It gets its score when it has begun.
				require.Eventually(t, func() bool { return score(process) == "1000" }, await.Limit, time.Millisecond, "want: the tool gets the highest OOM score")
			}

			await.WritePipe(t, goOn, "\n")
			require.NoError(t, await.Receive(t, ended, "the tool to end"))
		})
	}
}

// priority is what getpriority gives, which is 20 minus the nice, and the class
// that ioprio_get gives.
type priority struct{ processor, disk int }

var idlePriority = priority{processor: 1, disk: 3}

func priorityOf(t *testing.T, process int) priority {
	t.Helper()

	processor, err := unix.Getpriority(unix.PRIO_PROCESS, process)
	require.NoError(t, err)

	disk, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(process), 0)
	require.Zero(t, errno, "want: ioprio_get succeeds")

	return priority{processor: processor, disk: int(disk >> 13)}
}

// driverScript, in the environment, makes the test binary a driver that runs a
// tool and waits to be killed.
const (
	driverScript  = "TOUCHSTONE_TEST_DRIVER_SCRIPT"
	driverImage   = "TOUCHSTONE_TEST_DRIVER_IMAGE"
	driverPatient = "TOUCHSTONE_TEST_DRIVER_PATIENT"
)

func driver() error {
	held, err := os.Open(os.Getenv(driverImage))
	if err != nil {
		return err
	}

	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		return err
	}

	command := shell(os.Getenv(driverScript))
	command.InheritedFile = held
	command.Uninterruptible = os.Getenv(driverPatient) != ""

	_, err = filesystem.NewRunner().Run(context.Background(), command)

	return err
}

func TestToolsAfterTheDriverIsKilled(t *testing.T) {
	for name, patient := range map[string]string{
		"a tool dies with it":                           "",
		"an uninterruptible one ends, and has the lock": "yes",
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			image := filepath.Join(directory, "image")
			started, goOn := filepath.Join(directory, "started"), filepath.Join(directory, "go-on")
			require.NoError(t, os.WriteFile(image, nil, 0o600))
			require.NoError(t, unix.Mkfifo(started, 0o600))
			require.NoError(t, unix.Mkfifo(goOn, 0o600))

			process := child.Command(t, "/proc/self/exe")
			process.Env = append(os.Environ(), driverImage+"="+image, driverPatient+"="+patient,
				driverScript+"=echo >"+started+"; read line <"+goOn)
			require.NoError(t, process.Start())

			await.ReadPipe(t, started)
			require.NoError(t, process.Process.Kill())
			require.Error(t, process.Wait(), "the exit of a driver that was killed")

			probe, err := os.Open(image)
			require.NoError(t, err)

			defer probe.Close()

			if patient != "" {
				require.ErrorIs(t, unix.Flock(int(probe.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
				await.WritePipe(t, goOn, "\n")
			}

			// The lock is there as long as the tool.
			await.Flock(t, probe, unix.LOCK_EX)
		})
	}
}
