package touchstonetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// binaryVar names the program, if it is not the touchstone of the PATH.
const binaryVar = "TOUCHSTONE_BINARY"

var errHangs = errors.New("the driver does not end after SIGTERM")

// command runs the program without the settings of this environment: each TOUCHSTONE_ variable sets a flag.
func command(args ...string) (*exec.Cmd, error) {
	binary, err := exec.LookPath(cmp.Or(os.Getenv(binaryVar), "touchstone"))
	if err != nil {
		return nil, fmt.Errorf("%w; install it (go install github.com/touchstone-csi/touchstone/cmd/touchstone@latest), "+
			"or name the program by %s", err, binaryVar)
	}

	made := exec.CommandContext(context.Background(), binary, args...) //nolint:gosec // G702: the environment of a test is its author's
	made.Env = slices.DeleteFunc(os.Environ(), func(each string) bool {
		return strings.HasPrefix(each, "TOUCHSTONE_") || strings.HasPrefix(each, "CSI_ENDPOINT=")
	})

	return made, nil
}

// process is a driver. The kernel ends it with the process of the test.
type process struct {
	*exec.Cmd

	// alive ends with the process; failure is set before.
	alive   context.Context //nolint:containedctx // it is a state, which calls of the driver depend on
	failure error
}

func startProcess(log io.Writer, flags []string) (*process, error) {
	made, err := command(append([]string{"serve"}, flags...)...)
	if err != nil {
		return nil, err
	}

	made.Stderr = log
	made.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	alive, end := context.WithCancel(context.Background())
	p := &process{Cmd: made, alive: alive}
	started := make(chan error)

	go func() {
		defer end()

		// The signal is sent at the end of the thread that forks: it has to live as long as the driver.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := made.Start()
		started <- err

		if err == nil {
			p.failure = made.Wait()
		}
	}()

	return p, <-started
}

// running reports whether the process has not ended.
func (p *process) running() bool { return p.alive.Err() == nil }

// terminate ends the process, and returns its failure, also of one that has ended by itself.
func (p *process) terminate() error {
	_ = p.Process.Signal(syscall.SIGTERM) // it fails if the process has ended

	select {
	case <-p.alive.Done():
		return p.failure
	case <-time.After(limit):
		_ = p.Process.Kill()

		return errHangs
	}
}
