package syscallfault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
)

// launched marks the process that LaunchIfAsked turns into the one to be tested.
const launched = "TOUCHSTONE_TEST_LAUNCH"

// control is the launcher's descriptor of the socket to its parent.
const control = 3

// LaunchIfAsked is for the beginning of the TestMain of tests that use Start: in
// the process that Start starts, it installs the filter, sends its listener to
// the parent and replaces itself by the command.
func LaunchIfAsked() {
	path := os.Getenv(launched)
	if path == "" {
		return
	}

	fmt.Fprintln(os.Stderr, "launch:", launch(path))
	os.Exit(1)
}

// launch returns only if it fails. The filter is that of one thread, and survives
// the exec, which ends the other threads.
func launch(path string) error {
	runtime.LockOSThread()
	unix.CloseOnExec(control)

	if err := os.Unsetenv(launched); err != nil {
		return fmt.Errorf("unset %s: %w", launched, err)
	}

	environment := os.Environ()

	// Without privileges the kernel requires it for a filter.
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("give up new privileges: %w", err)
		}
	}

	listener, err := install(program())
	if err != nil {
		return err
	}

	if err := unix.Sendmsg(control, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}

	return fmt.Errorf("exec %s: %w", path, syscall.Exec(path, os.Args, environment))
}

func install(filter []unix.SockFilter) (listener int, err error) {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}

	// WAIT_KILLABLE_RECV: Go's preemption signals would otherwise interrupt a call
	// that is being decided, and the kernel would report it a second time.
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return none, fmt.Errorf("install a seccomp filter: %w", errno)
	}

	return int(fd), nil
}

// program reports the calls of layouts and allows all others.
func program() []unix.SockFilter {
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer  = unix.BPF_RET | unix.BPF_K
		nrAt    = 0
		archAt  = 4
		toAllow = 1
	)

	calls := layouts()
	filter := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: auditArch, Jt: toAllow},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		{Code: load, K: nrAt},
	}

	left := len(calls)
	for nr := range calls {
		// Past the remaining comparisons and the answer for all others.
		filter = append(filter, unix.SockFilter{Code: equal, K: uint32(nr), Jt: uint8(left)})
		left--
	}

	return append(filter,
		unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_USER_NOTIF})
}

// Start starts the command, whose Path and Args are those of the program to be
// tested, with decide asked for each of its calls and those of its children, as by
// Tracer.Ask. An errno other than 0 is the call's answer. The kernel kills the
// process when this one ends.
func Start(command *exec.Cmd, decide func(*Call) syscall.Errno) (*Tracer, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket to the launcher: %w", err)
	}
	defer unix.Close(pair[0])

	there := os.NewFile(uintptr(pair[1]), "socket of the launcher")
	command.Env = append(command.Environ(), launched+"="+command.Path)
	command.Path, command.Err = "/proc/self/exe", nil
	command.ExtraFiles = []*os.File{there}

	err = child.Start(command)
	_ = there.Close()

	if err != nil {
		return nil, fmt.Errorf("start the launcher: %w", err)
	}

	listener, err := receiveListener(pair[0])
	if err != nil {
		_ = command.Process.Kill()

		return nil, errors.Join(err, command.Wait())
	}

	t := &Tracer{listener: listener, pid: command.Process.Pid, decide: decide, layouts: layouts(), ended: make(chan struct{})}
	go t.serve()

	return t, nil
}

func receiveListener(socket int) (int, error) {
	// A launcher that fails ends, which ends the read.
	space := make([]byte, unix.CmsgSpace(4))

	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), space, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return none, fmt.Errorf("receive the listener: %w", err)
	}

	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(messages) != 1 {
		return none, fmt.Errorf("receive the listener: the launcher has sent none: %w", err)
	}

	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return none, fmt.Errorf("receive the listener: %w", err)
	}

	return fds[0], nil
}
