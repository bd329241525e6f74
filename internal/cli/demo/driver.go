package demo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	nodeID = "demo-node"
	// exitLimit is how long the driver may take to exit on a signal.
	exitLimit = 10 * time.Second
	// logTail is how much of the driver's log is shown when a step fails.
	logTail = 20
	logMode = 0o600
)

// Errors of the driver's process.
var (
	errDriverExited  = errors.New("the driver exited by itself")
	errDriverRefused = errors.New("the driver does not exit")
)

// The files and directories of a demo.
func stateIn(root string) string   { return filepath.Join(root, "state") }
func poolIn(root string) string    { return filepath.Join(root, "pool") }
func kubeletIn(root string) string { return filepath.Join(root, "kubelet") }
func socketIn(root string) string  { return filepath.Join(root, "csi.sock") }
func logIn(root string) string     { return filepath.Join(root, "driver.log") }

// driver is a process of `touchstone serve`.
type driver struct {
	process *os.Process
	exited  chan struct{} // Closed when the process has exited; err is set then.
	err     error
}

// startDriver runs `touchstone serve` with all its paths below root. The calling goroutine
// must be locked to its thread, because Pdeathsig is sent when that thread ends.
func startDriver(root string) (*driver, error) {
	log, err := os.OpenFile(logIn(root), os.O_WRONLY|os.O_CREATE|os.O_APPEND, logMode)
	if err != nil {
		return nil, fmt.Errorf("open the driver's log: %w", err)
	}
	defer func() { _ = log.Close() }() // The child has its own descriptor.

	child := exec.Command("/proc/self/exe", "serve", //nolint:noctx // It must survive the step that starts it.
		"--mode=all",
		"--endpoint=unix://"+socketIn(root),
		"--node-id="+nodeID,
		"--state-dir="+stateIn(root),
		"--pool=default="+poolIn(root),
		// Sparse; copies share blocks on every host filesystem.
		"--pool-image-size=4Gi",
		"--kubelet-dir="+kubeletIn(root),
		"--http-endpoint=",
		// The demo sends no concurrent requests that could be merged.
		"--coalesce-window=0s",
	)
	child.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "TOUCHSTONE_") // These set the driver's flags.
	})
	child.Stdout, child.Stderr = log, log
	// A process group of its own, so that Ctrl-C at the terminal reaches only the demo.
	child.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}

	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start touchstone serve: %w", err)
	}

	running := &driver{process: child.Process, exited: make(chan struct{})}
	go func() {
		running.err = child.Wait()
		close(running.exited)
	}()
	return running, nil
}

// signal sends a signal that ends the process, and waits until it has exited.
func (d *driver) signal(signal unix.Signal) error {
	if err := d.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal the driver: %w", err)
	}

	select {
	case <-d.exited:
		return nil
	case <-time.After(exitLimit):
		return fmt.Errorf("%w within %s of %s", errDriverRefused, exitLimit, signal)
	}
}

// terminate ends the driver, and kills it with its mkfs and fsck if it does not exit.
func (d *driver) terminate() error {
	err := d.signal(unix.SIGTERM)
	if errors.Is(err, errDriverRefused) {
		_ = unix.Kill(-d.process.Pid, unix.SIGKILL)
		err = d.signal(unix.SIGKILL)
	}
	return err
}

// exitError waits briefly for the driver's exit, which a failed call may have been the first
// to notice, and returns how it exited, or nil if it has not.
func (d *driver) exitError() error {
	const grace = 100 * time.Millisecond

	select {
	case <-d.exited:
		return fmt.Errorf("%w: %v", errDriverExited, d.err) //nolint:errorlint // Its exit code is not the demo's.
	case <-time.After(grace):
		return nil
	}
}
