// Package namespace lets tests mount where no other process sees it, and
// where nothing is left even when they are killed.
//
// It contains the entry into the namespace, and the check that it is empty.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// inside marks the process that is in the namespace already.
const inside = "TOUCHSTONE_TEST_IN_MOUNT_NAMESPACE"

// Enter is for the begin of TestMain: as root it runs the tests once more, in a
// mount namespace of their own, and ends this process with their result.
// Without root, and inside, it does nothing.
func Enter() {
	if os.Geteuid() == 0 && os.Getenv(inside) == "" {
		os.Exit(runInside())
	}
}

// Main is all of a TestMain that needs nothing else.
func Main(m *testing.M) int {
	Enter()

	return m.Run()
}

// Rooted reports whether the tests may mount and attach loop devices.
func Rooted() bool { return os.Geteuid() == 0 }

// NeedRoot skips what can't be done without root. A test calls it where it first mounts or attaches
// something: what precedes that runs as any user.
func NeedRoot(tb testing.TB) {
	tb.Helper()

	if !Rooted() {
		tb.Skip("mounting and loop devices need root")
	}
}

func runInside() int {
	// The parent-death signal is sent when the thread that forked ends.
	runtime.LockOSThread()

	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Args[0] = os.Args[0]
	command.Env = append(os.Environ(), inside+"=1")
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Go makes the unshared namespace private.
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}

	err := command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in a mount namespace:", err)

		return 1
	}

	return 0
}
