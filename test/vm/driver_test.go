package vm_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
)

const (
	nodeID = "vm"
	// attachedLoops matches a directory for each loop device that is in use.
	attachedLoops = "/sys/block/loop*/loop"
	// waitLimit bounds what must happen sooner or later; no verdict depends on
	// how soon, because the emulated processor shares a busy host.
	waitLimit = 3 * time.Minute
)

// driver is `touchstone serve` as a process, and the connection to its socket.
type driver struct {
	*csiclient.Client

	root, pool string
	flags      []string
	process    *exec.Cmd
	exited     chan error
}

// startDriver serves all services with one pool at the given directory. The
// driver is stopped when the test ends, and must then end well.
func startDriver(t *testing.T, pool string, flags ...string) *driver {
	t.Helper()

	d := &driver{root: t.TempDir(), pool: pool, flags: flags}
	d.serve(t)
	t.Cleanup(func() { d.abandon(t) })
	t.Cleanup(func() { d.stop(t) })

	connection, err := csiclient.Connect("unix://"+filepath.Join(d.root, "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	d.Client = connection
	d.waitReady(t)

	return d
}

func (d *driver) serve(t *testing.T) {
	t.Helper()

	d.process = exec.Command(setting(t, "TOUCHSTONE_BINARY"), append([]string{
		"serve",
		"--mode=all", "--node-id=" + nodeID,
		"--endpoint=unix://" + filepath.Join(d.root, "csi.sock"),
		"--state-dir=" + filepath.Join(d.root, "state"),
		"--pool=default=" + d.pool,
		"--kubelet-dir=" + d.kubelet(),
		"--http-endpoint=",
	}, d.flags...)...)
	d.process.Env = environment()

	log, err := os.OpenFile(d.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	require.NoError(t, err)

	defer log.Close() // The child has its own descriptor.

	d.process.Stdout, d.process.Stderr = log, log
	require.NoError(t, d.process.Start())

	d.exited = make(chan error, 1)
	go func() { d.exited <- d.process.Wait() }()
}

// environment is that of the tests without what the guest's init says to them, which is not meant as flags.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "TOUCHSTONE_") })
}

// waitReady fails at once when the driver ends instead of becoming ready.
func (d *driver) waitReady(t *testing.T) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	ready := make(chan error, 1)
	go func() { ready <- d.WaitReady(ctx) }()

	select {
	case err := <-ready:
		require.NoError(t, err)
	case err := <-d.exited:
		d.exited <- err
		require.FailNow(t, "the driver exited at start", "%v", err)
	}
}

// restartKilled ends the driver with SIGKILL and starts it on what it left.
func (d *driver) restartKilled(t *testing.T) {
	t.Helper()

	require.NoError(t, d.process.Process.Kill())

	var killed *exec.ExitError
	require.ErrorAs(t, await.Receive(t, d.exited, "the killed driver to end"), &killed, "the driver had ended before it was killed")
	d.serve(t)
	d.waitReady(t)
}

// stop is SIGTERM; the exit code must be 0.
func (d *driver) stop(t *testing.T) {
	t.Helper()

	err := d.process.Process.Signal(unix.SIGTERM)
	if !errors.Is(err, os.ErrProcessDone) {
		require.NoError(t, err)
	}

	select {
	case err := <-d.exited:
		require.NoError(t, err, "the driver's exit")
	case <-time.After(waitLimit):
		_ = d.process.Process.Kill()

		require.FailNow(t, "the driver does not end on SIGTERM")
	}
}

// abandon shows the driver's log of a failed test and takes away what it has
// left mounted and attached, so that the next one has the disk to itself.
func (d *driver) abandon(t *testing.T) {
	t.Helper()

	if !t.Failed() {
		return
	}

	log, err := os.ReadFile(d.logPath())
	require.NoError(t, err)
	t.Logf("the driver's log:\n%s", log)

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.kubelet()))
	require.NoError(t, err)

	for _, mount := range mounts {
		_ = unix.Unmount(mount.Mountpoint, unix.MNT_DETACH)
	}

	attached, err := filepath.Glob(attachedLoops)
	require.NoError(t, err)

	for _, loop := range attached {
		run(t, "losetup", "-d", "/dev/"+filepath.Base(filepath.Dir(loop)))
	}
}

func (d *driver) logPath() string { return filepath.Join(d.root, "driver.log") }

// kubelet is the directory in which staging and target paths lie.
func (d *driver) kubelet() string { return filepath.Join(d.root, "kubelet") }
