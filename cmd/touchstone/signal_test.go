package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// busy is a process in the middle of a NodeStageVolume, whose mkfs waits.
type busy struct {
	dir     string
	command *exec.Cmd
	lines   <-chan string
	client  *csiclient.Client
	claim   *csiclient.Publication
	// staged is the answer of the call.
	staged chan error
}

// slowTools makes a directory with a mkfs.ext4 that says that it runs, and then
// waits until release is called.
func slowTools(t *testing.T, dir string) (running string, release func()) {
	t.Helper()

	made, err := exec.LookPath("mkfs.ext4")
	require.NoError(t, err)

	running, hold := filepath.Join(dir, "running"), filepath.Join(dir, "hold")
	for _, pipe := range []string{running, hold} {
		require.NoError(t, unix.Mkfifo(pipe, 0o600))
	}

	script := fmt.Sprintf("#!/bin/sh\n: > %s\n: < %s\nexec %s \"$@\"\n", running, hold, made)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mkfs.ext4"), []byte(script), 0o700))

	unblock := func(flag int) error {
		pipe, err := os.OpenFile(hold, os.O_WRONLY|flag, 0)
		if err != nil {
			return fmt.Errorf("release mkfs: %w", err)
		}

		return pipe.Close()
	}
	// One that was never released must not wait for ever; where none waits, the
	// pipe has no reader.
	t.Cleanup(func() { _ = unblock(unix.O_NONBLOCK) })

	return running, func() {
		await.Return(t, func() { err = unblock(0) }, "mkfs to wait for its release")
		require.NoError(t, err)
	}
}

func startBusy(t *testing.T) (b *busy, release func()) {
	t.Helper()
	namespace.NeedRoot(t)

	b = &busy{dir: t.TempDir(), staged: make(chan error, 1)}
	tools := t.TempDir()
	running, release := slowTools(t, tools)
	b.start(t, "PATH="+tools+":"+os.Getenv("PATH"))

	ctx := t.Context()
	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")
	made, err := b.client.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "busy", VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
	})
	require.NoError(t, err)

	b.claim = &csiclient.Publication{
		VolumeID: made.GetVolume().GetVolumeId(), VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability,
		NodeID: "node-a", StagingPath: filepath.Join(b.dir, "kubelet", "staging"),
	}
	require.NoError(t, b.client.Attach(ctx, b.claim))

	go func() { b.staged <- b.client.Stage(context.WithoutCancel(ctx), b.claim) }()

	// Opening it waits for who writes.
	await.ReadPipe(t, running)

	return b, release
}

// start starts the process in a mount namespace that ends with it.
func (b *busy) start(t *testing.T, environment ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(b.dir, "kubelet"), 0o700))

	self, err := os.Executable()
	require.NoError(t, err)

	b.command = exec.CommandContext(t.Context(), self, "--node-id=node-a", "--endpoint", filepath.Join(b.dir, "csi.sock"),
		"--state-dir", filepath.Join(b.dir, "state"), "--kubelet-dir", filepath.Join(b.dir, "kubelet"),
		"--pool", "default="+filepath.Join(b.dir, "pool"))
	b.command.Env = append(append(os.Environ(), asTouchstone+"=1"), environment...)
	b.command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	b.lines = startCommand(t, b.command)
	awaitLine(t, b.lines, "msg=ready")

	b.client, err = csiclient.Connect("unix://"+filepath.Join(b.dir, "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)

	client := b.client
	t.Cleanup(func() { _ = client.Close() })
}

func (b *busy) signal(t *testing.T) {
	t.Helper()
	require.NoError(t, b.command.Process.Signal(syscall.SIGTERM))
}

func TestSIGTERMLetsARunningCallFinish(t *testing.T) {
	t.Parallel()

	b, release := startBusy(t)
	b.signal(t)
	awaitLine(t, b.lines, "msg=draining")
	require.Eventually(t, func() bool {
		_, err := os.Lstat(filepath.Join(b.dir, "csi.sock"))

		return os.IsNotExist(err)
	}, time.Minute, time.Millisecond, "want: the draining driver removes its socket")

	_, err := b.client.Probe(t.Context(), &csi.ProbeRequest{})
	rpccode.Require(t, err, codes.Unavailable)
	_, err = b.client.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	rpccode.Require(t, err, codes.Unavailable)
	require.Empty(t, b.staged, "want: the running NodeStageVolume has no answer yet")

	release()
	require.NoError(t, await.Receive(t, b.staged, "NodeStageVolume to return"))
	awaitLine(t, b.lines, "msg=drained")
	require.NoError(t, child.Wait(t, b.command))
}

func TestSecondSIGTERMEndsTheProcessAtOnce(t *testing.T) {
	t.Parallel()

	b, _ := startBusy(t)
	b.signal(t)
	awaitLine(t, b.lines, "msg=draining")

	// One that comes at once is the same request.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()

	ended := make(chan struct{})

	go func() {
		for {
			select {
			case <-again.C:
				_ = b.command.Process.Signal(syscall.SIGTERM)
			case <-ended:
				return
			}
		}
	}()

	awaitLast(t, b.lines)
	close(ended)

	require.Error(t, child.Wait(t, b.command), "the exit after a second SIGTERM")
	require.Equal(t, exitNotWell, b.command.ProcessState.ExitCode(), "want: a second SIGTERM exits with the code of a failure")
	rpccode.Require(t, await.Receive(t, b.staged, "NodeStageVolume to return"), codes.Unavailable)

	// The retry completes the interrupted call.
	b.start(t)
	require.NoError(t, b.client.Stage(t.Context(), b.claim))
	b.signal(t)
	awaitLine(t, b.lines, "msg=drained")
	require.NoError(t, child.Wait(t, b.command))
}

func TestProxyDrainsAtSIGTERM(t *testing.T) {
	t.Parallel()

	behind, front := t.TempDir(), t.TempDir()
	driver, lines := startProcess(t, behind)
	awaitLine(t, lines, "msg=ready")

	// The pool and the state of the other one are no hindrance: it has none.
	command, said := startProcess(t, front, "--proxy-endpoint", filepath.Join(behind, "csi.sock"), "--state-dir", "none")
	awaitLine(t, said, "msg=ready")
	require.FileExists(t, filepath.Join(front, "ready"))

	client, err := csiclient.Connect("unix://"+filepath.Join(front, "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)

	defer client.Close()

	info, err := client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "controller", info.GetManifest()["mode"])

	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	awaitLine(t, said, "msg=draining")
	require.NoError(t, child.Wait(t, command))

	left, err := os.ReadDir(front)
	require.NoError(t, err)
	require.Empty(t, left, "want: the proxy leaves nothing in its directory")

	require.NoError(t, driver.Process.Signal(syscall.SIGTERM))
	require.NoError(t, child.Wait(t, driver))
}
