package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestSIGTERMDoesNotWaitForACheckThatHangs has e2fsck write to a frozen filesystem,
// where no signal ends it.
func TestSIGTERMDoesNotWaitForACheckThatHangs(t *testing.T) {
	t.Parallel()
	namespace.NeedRoot(t)

	frozen := testpool.Plain(t, 1<<30)
	root, err := os.Open(filepath.Dir(frozen))
	require.NoError(t, err)

	defer root.Close()

	tools := hangingCheck(t, filepath.Join(root.Name(), "file"))

	b := &busy{dir: t.TempDir()}
	b.start(t, "PATH="+tools+":"+os.Getenv("PATH"), "TOUCHSTONE_CHECK_PERIOD=1s", "TOUCHSTONE_DRAIN_TIMEOUT=2s")

	require.NoError(t, filesystem.Freeze(root))
	defer func() { require.NoError(t, filesystem.Thaw(root)) }()

	ctx := t.Context()
	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")
	made, err := b.client.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "checked", VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
	})
	require.NoError(t, err)

	claim := &csiclient.Publication{
		VolumeID: made.GetVolume().GetVolumeId(), VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability,
		NodeID: "node-a", StagingPath: filepath.Join(b.dir, "kubelet", "staging"),
	}
	require.NoError(t, b.client.Attach(ctx, claim))
	require.NoError(t, b.client.Stage(ctx, claim))

	// Opening it waits for the check. Until the write to the frozen filesystem blocks, a
	// signal would still end the tool.
	pid := strings.TrimSpace(string(await.ReadPipe(t, filepath.Join(tools, "running"))))

	require.Eventually(t, func() bool {
		status, err := os.ReadFile("/proc/" + pid + "/status")

		return err == nil && strings.Contains(string(status), "\nState:\tD")
	}, time.Minute, time.Millisecond, "the check does not hang")

	b.signal(t)
	awaitLine(t, b.lines, "msg=drained")
	await.Return(t, func() { _ = b.command.Wait() }, "the end of the driver, whose check hangs")
	require.Equal(t, exitNotWell, b.command.ProcessState.ExitCode(), "exit code of an incomplete drain")
}

// TestSIGTERMEndsDespiteHangingDirectories has the directory of the state or of a pool not answer,
// while the driver starts, serves or ends.
func TestSIGTERMEndsDespiteHangingDirectories(t *testing.T) {
	t.Parallel()
	namespace.NeedRoot(t)

	for _, hanging := range []string{"state", "pool"} {
		for _, starting := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/starting=%t", hanging, starting), func(t *testing.T) {
				t.Parallel()

				served := faults.Serve(t)
				args := []string{"--drain-timeout=2s"}

				if hanging == "state" {
					args = append(args, "--state-dir", filepath.Join(served.Path, "directory"))
				} else {
					args = append(args, "--pool", "default="+filepath.Join(served.Path, "directory"))
				}

				if starting {
					served.Inject(t, faults.Fault{Hang: true})
				}

				command, lines := startProcess(t, t.TempDir(), args...)

				if starting {
					require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond, "want: the hanging directory is asked")
				} else {
					awaitLine(t, lines, "msg=ready")
					served.Inject(t, faults.Fault{Hang: true})
				}

				require.NoError(t, command.Process.Signal(syscall.SIGTERM))

				require.Eventually(t, func() bool { return exiting(command.Process.Pid) }, faults.Longest/2, time.Millisecond, "want: SIGTERM begins the exit though a call hangs")

				// Of a call that the server of the files has taken, no signal ends the thread.
				served.Release(t)
				awaitLast(t, lines)
				_ = command.Wait()

				// A drain is complete if nothing has asked for the directory since it hangs.
				if code := command.ProcessState.ExitCode(); starting || code != 0 {
					require.Equal(t, exitNotWell, code, "want: a process that could not drain exits with the code of a failure")
				}
			})
		}
	}
}

// exiting reports whether the process can only end: its main thread has exited, or SIGKILL is
// pending for it.
func exiting(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))

	return err != nil || regexp.MustCompile(`(?m)^(State:\tZ|(Sig|Shd)Pnd:\t[0-9a-f]+[13579bdf][0-9a-f]{2}$)`).Match(text)
}

// hangingCheck makes a directory with an e2fsck that, if it only checks, writes its pid to
// the pipe `running` and then writes to the file.
func hangingCheck(t *testing.T, file string) (tools string) {
	t.Helper()

	fsck, err := exec.LookPath("e2fsck")
	require.NoError(t, err)

	tools = t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(tools, "running"), 0o600))

	const text = `#!/bin/sh
case " $*" in *" -n"*|*" -fn"*) echo $$ > %s/running; : > %s;; esac
exec %s "$@"
`

	script := fmt.Sprintf(text, tools, file, fsck)
	require.NoError(t, os.WriteFile(filepath.Join(tools, "e2fsck"), []byte(script), 0o700))

	return tools
}
