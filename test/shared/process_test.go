package shared_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
)

// readyLimit is no verdict on speed: it only ends a test that would hang.
const readyLimit = time.Minute

// process is one driver process and a client of it.
type process struct {
	*csiclient.Client

	command *exec.Cmd
	// root is the process's directory; kubelet is what it may mount beneath.
	root, kubelet string
	nodeID        string
}

func build(t *testing.T) string {
	t.Helper()

	binary := filepath.Join(t.TempDir(), "touchstone")
	require.NoError(t, child.BuildDriver(binary))

	return binary
}

// start starts a process over the pool and ends it with the test, which fails
// if that is not orderly.
func start(t *testing.T, binary, pool, mode, nodeID string, flags ...string) *process {
	t.Helper()

	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	kubelet := filepath.Join(root, "kubelet")
	require.NoError(t, os.Mkdir(kubelet, 0o750))

	endpoint := "unix://" + filepath.Join(root, "csi.sock")
	arguments := append([]string{
		"serve", "--mode", mode, "--shared", "--endpoint", endpoint, "--node-id", nodeID,
		"--state-dir", filepath.Join(root, "state"), "--pool", "default=" + pool, "--kubelet-dir", kubelet,
	}, flags...)

	command := exec.Command(binary, arguments...)
	command.Stderr = t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	require.NoError(t, child.Start(command))

	client, err := csiclient.Connect(endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)

	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, child.Wait(t, command))
	})

	ready, done := context.WithTimeout(t.Context(), readyLimit)
	defer done()

	require.NoError(t, client.WaitReady(ready))

	return &process{Client: client, command: command, root: root, kubelet: kubelet, nodeID: nodeID}
}

// inside returns how the test reaches a path in the process's mount namespace.
func (p *process) inside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", p.command.Process.Pid, path)
}
