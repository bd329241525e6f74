// Package child starts processes that end with the test that started them, and plays
// one that is just being forked.
package child

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts the command so that the kernel kills it when this process ends.
//
// The kernel sends the signal at the death of the thread that forked, and Go
// ends a thread with the goroutine that never let go of it: what an idle check
// or a test of a waiting write does would kill the children forked earlier on
// that thread before. So this one is kept until the child has ended.
func Start(command *exec.Cmd) error { return start(command, nil) }

// StartBounded is Start with no other capabilities than those of the names ("CHOWN"), as a service
// manager or a container runtime starts a program of root's.
func StartBounded(command *exec.Cmd, capabilities []string) error {
	return start(command, func() error { return boundCapabilities(capabilities) })
}

// start calls prepare, if it is not nil, on the thread that forks, which ends with the child then.
func start(command *exec.Cmd, prepare func() error) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}

	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)

	go func() {
		runtime.LockOSThread()

		var err error

		if prepare == nil {
			defer runtime.UnlockOSThread()
		} else {
			err = prepare()
		}

		if err == nil {
			err = command.Start()
		}

		if err != nil {
			started <- err

			return
		}

		pid := command.Process.Pid
		started <- nil

		awaitEnd(pid)
	}()

	return <-started
}

// awaitEnd leaves the exit status to the caller of Start.
func awaitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
