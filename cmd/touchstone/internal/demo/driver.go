package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const (
	nodeID = "demo-node"
	// poolBytes is the size of the embedded pool's filesystem, which is sparse. In it copies
	// share blocks on every host filesystem.
	poolBytes = 4 << 30
	// exitLimit is how long the driver may take to exit on a signal.
	exitLimit = 10 * time.Second
	// noticeLimit is how long before its exit the driver's process may close its socket.
	noticeLimit = 100 * time.Millisecond

	fileMode, dirMode = 0o600, 0o755

	socketName = "csi.sock"
	logName    = "driver.log"
)

// Errors of the driver's process.
var (
	errDriverExited  = errors.New("the driver exited by itself")
	errDriverRefused = errors.New("the driver does not exit")
)

// driver is a process of `touchstone serve`.
type driver struct {
	*exec.Cmd

	exited chan struct{} // Closed when the process has exited.
}

// startDriver runs `touchstone serve` with all its paths below root. The calling goroutine
// must be locked to its thread, because Pdeathsig is sent when that thread ends.
// It waits until the driver is ready, and fails at once if it exits.
func (d *demo) startDriver(ctx context.Context) (string, error) {
	log, err := os.OpenFile(d.path(logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return "", err
	}
	defer log.Close() // The child has its own descriptor.

	child := exec.Command("/proc/self/exe", "serve", //nolint:noctx // It must survive the step that starts it.
		"--mode=all",
		"--endpoint=unix://"+d.path(socketName),
		"--node-id="+nodeID,
		"--state-dir="+d.path("state"),
		"--pool=default="+d.path("pool"),
		fmt.Sprintf("--pool-image-size=%d", poolBytes),
		"--kubelet-dir="+d.path("kubelet"),
		"--http-endpoint=",
		"--call-log="+d.path("calls.log"),
		// The demo sends no concurrent requests that could be merged.
		"--coalesce-window=0s",
	)
	child.Env = []string{"PATH=" + os.Getenv("PATH")} // No TOUCHSTONE_*, which sets flags.
	child.Stdout, child.Stderr = log, log
	// A process group of its own, so that Ctrl-C at the terminal reaches only the demo.
	child.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}

	if err := child.Start(); err != nil {
		return "", err
	}

	exited := make(chan struct{})
	d.driver = &driver{child, exited}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_ = child.Wait() // ProcessState has its result.
		close(exited)
		cancel()
	}()

	client, err := csiclient.Connect("unix://" + d.path(socketName))
	if err != nil {
		return "", err
	}
	defer client.Close()

	return fmt.Sprintf("process %d", child.Process.Pid), client.WaitReady(ctx)
}

func (d *demo) killDriver(context.Context) (string, error) {
	killed := d.driver
	d.driver = nil // Its exit is expected from here on.
	return fmt.Sprintf("process %d is gone", killed.Process.Pid), killed.end(unix.SIGKILL)
}

func (d *demo) stopDriver(context.Context) (string, error) {
	stopped := d.driver
	if err := stopped.end(unix.SIGTERM); err != nil {
		return "SIGTERM", err
	}
	d.driver = nil
	return "SIGTERM → exit code 0", check(stopped.ProcessState.Success(), "%s", stopped.ProcessState)
}

// end sends a signal that ends the process, and waits until it has exited.
func (d *driver) end(signal unix.Signal) error {
	_ = d.Process.Signal(signal) // It fails if the process has exited.

	select {
	case <-d.exited:
		return nil
	case <-time.After(exitLimit):
		return fmt.Errorf("%w within %s of %s", errDriverRefused, exitLimit, signal)
	}
}

// terminate ends the driver, if there is one, and kills it if it does not exit. With it the
// kernel kills its mkfs and fsck.
func (d *driver) terminate() error {
	if d == nil || d.end(unix.SIGTERM) == nil {
		return nil
	}
	return d.end(unix.SIGKILL)
}

// explain returns how the driver exited, which a failed call may be the first to notice, or the
// call's error if it runs.
func (d *driver) explain(failure error) error {
	if d == nil {
		return failure
	}
	select {
	case <-d.exited:
		return fmt.Errorf("%w: %s", errDriverExited, d.ProcessState)
	case <-time.After(noticeLimit):
		return failure
	}
}
