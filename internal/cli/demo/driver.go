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
	errDriverRefused = errors.New("the driver does not exit")
)

// workPaths are the directories and files of one demo, all below root.
type workPaths struct {
	root, state, pool, kubelet, socket, log string
}

func workPathsIn(root string) workPaths {
	return workPaths{
		root:    root,
		state:   filepath.Join(root, "state"),
		pool:    filepath.Join(root, "pool"),
		kubelet: filepath.Join(root, "kubelet"),
		socket:  filepath.Join(root, "csi.sock"),
		log:     filepath.Join(root, "driver.log"),
	}
}

// driver is a process of `touchstone serve`.
type driver struct {
	process *os.Process
	exited  chan struct{} // Closed when the process has exited; err is set then.
	err     error
}

// startDriver runs `program serve` with all its paths below the demo's root.
func startDriver(program string, paths workPaths) (*driver, error) {
	log, err := os.OpenFile(paths.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, logMode)
	if err != nil {
		return nil, fmt.Errorf("open the driver's log: %w", err)
	}

	defer func() { _ = log.Close() }() // The child has its own descriptor.

	// Without a context: the driver must survive an interrupted step, whose calls are
	// undone through it.
	child := exec.Command(program, "serve", //nolint:noctx // See above.
		"--mode=all",
		"--endpoint=unix://"+paths.socket,
		"--node-id="+nodeID,
		"--state-dir="+paths.state,
		"--pool=default="+paths.pool,
		// Sparse; copies share blocks on every host filesystem.
		"--pool-image-size=4Gi",
		"--kubelet-dir="+paths.kubelet,
		"--http-endpoint=",
		// The demo sends no concurrent requests that could be merged.
		"--coalesce-window=0s",
	)
	child.Env = driverEnvironment(os.Environ())
	child.Stdout, child.Stderr = log, log
	// A process group of its own, so that Ctrl-C at the terminal reaches only the demo.
	child.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}

	running := &driver{exited: make(chan struct{})}
	started := make(chan error)

	go func() {
		// Pdeathsig is sent when the thread that started the child exits, so the thread
		// must live as long as the child.
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

// driverEnvironment drops the variables that set the driver's flags, and adds the
// directories of mkfs and fsck to PATH.
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

// kill sends SIGKILL and waits until the process has exited.
func (d *driver) kill() error {
	if err := d.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the driver: %w", err)
	}

	<-d.exited

	return nil
}

// stop sends SIGTERM and returns how the process ended: nil for exit code 0.
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

// withExit returns a context that also ends, with the reason as its cause, when the
// driver exits.
func (d *driver) withExit(ctx context.Context) (context.Context, context.CancelFunc) {
	watched, cancel := context.WithCancelCause(ctx)

	go func() {
		select {
		case <-d.exited:
			cancel(fmt.Errorf("%w: %v", errDriverExited, d.err)) //nolint:errorlint // Only errDriverExited is to match.
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

// terminate stops the driver, and kills it if it does not exit in time.
func (d *driver) terminate(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	if err := d.stop(ctx); !errors.Is(err, errDriverRefused) {
		return nil // It exited; its exit code does not matter here.
	}

	// The group contains its mkfs and fsck too.
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
