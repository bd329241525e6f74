package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	nodeID = "demo-node"
	// logTail is how much of the driver's log is shown when a step fails.
	logTail = 20
	logMode = 0o600
)

// Errors of the driver's process.
var (
	errDriverExited  = errors.New("the driver exited by itself")
	errDriverRefused = errors.New("the driver does not end")
)

// places are the directories and files of one demo, all beneath root.
type places struct {
	root, state, pool, kubelet, socket, log string
}

func placesIn(root string) places {
	return places{
		root:    root,
		state:   filepath.Join(root, "state"),
		pool:    filepath.Join(root, "pool"),
		kubelet: filepath.Join(root, "kubelet"),
		socket:  filepath.Join(root, "csi.sock"),
		log:     filepath.Join(root, "driver.log"),
	}
}

// driver is one run of `touchstone serve` as a process of its own.
type driver struct {
	process *os.Process
	exited  chan struct{} // Closed when the process is gone; err is then set.
	err     error
}

// startDriver runs program serve with everything beneath the demo's root.
func startDriver(program string, at places) (*driver, error) {
	log, err := os.OpenFile(at.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, logMode)
	if err != nil {
		return nil, fmt.Errorf("open the driver's log: %w", err)
	}

	defer func() { _ = log.Close() }() // The child has its own descriptor.

	// Deliberately without a context: the driver outlives an interrupted step,
	// so that what the step did can be undone through it.
	child := exec.Command(program, "serve", //nolint:noctx // See above.
		"--mode=all",
		"--endpoint=unix://"+at.socket,
		"--node-id="+nodeID,
		"--state-dir="+at.state,
		"--pool=default="+at.pool,
		// Sparse: copies are instant wherever it runs.
		"--pool-image-size=4Gi",
		"--kubelet-dir="+at.kubelet,
		"--http-endpoint=",
		// Nothing else is asked of a volume that could be done together.
		"--coalesce-window=0s",
	)
	child.Env = driverEnvironment(os.Environ())
	child.Stdout, child.Stderr = log, log
	// A group of its own: Ctrl-C at the terminal is the demo's to handle.
	child.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}

	running := &driver{exited: make(chan struct{})}
	started := make(chan error)

	go func() {
		// Pdeathsig follows the thread that started the child, so that thread
		// has to last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := child.Start()
		running.process = child.Process
		started <- err

		if err == nil {
			running.err = child.Wait()
			close(running.exited)
		}
	}()

	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s serve: %w", program, err)
	}

	return running, nil
}

// driverEnvironment leaves out what would change the driver's flags, and adds
// the directories in which mkfs and fsck live.
func driverEnvironment(given []string) []string {
	kept := make([]string, 0, len(given))

	for _, variable := range given {
		switch {
		case strings.HasPrefix(variable, "TOUCHSTONE_"):
		case strings.HasPrefix(variable, "PATH="):
			kept = append(kept, variable+":/usr/sbin:/sbin")
		default:
			kept = append(kept, variable)
		}
	}

	return kept
}

// kill is SIGKILL, and waits until the process is gone.
func (d *driver) kill() error {
	if err := d.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the driver: %w", err)
	}

	<-d.exited

	return nil
}

// stop is SIGTERM, and returns how the process ended: nil for exit code 0.
func (d *driver) stop(ctx context.Context) error {
	if err := d.process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate the driver: %w", err)
	}

	select {
	case <-d.exited:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errDriverRefused, ctx.Err())
	}
}

// while returns a context that also ends, with the reason as its cause, when
// the driver does.
func (d *driver) while(ctx context.Context) (context.Context, context.CancelFunc) {
	watched, cancel := context.WithCancelCause(ctx)

	go func() {
		select {
		case <-d.exited:
			cancel(fmt.Errorf("%w: %v", errDriverExited, d.err)) //nolint:errorlint // Only one is to be found.
		case <-watched.Done():
		}
	}()

	return watched, func() { cancel(nil) }
}

func (d *driver) alive() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// end is stop, and kill if that is not heeded.
func (d *driver) end(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	if err := d.stop(ctx); !errors.Is(err, errDriverRefused) {
		return nil // It ended, which is all that counts here.
	}

	// Its mkfs and fsck too: they are in its group.
	_ = unix.Kill(-d.process.Pid, unix.SIGKILL)

	return d.kill()
}

func tail(path string, lines int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}

	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")

	return all[max(0, len(all)-lines):]
}
