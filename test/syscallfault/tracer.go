package syscallfault

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call that has not run yet.
type Call struct {
	// Tool is the command name of the child process that calls; it is empty if the
	// started process itself does.
	Tool string
	// Name is the system call's, Path the file that it is about, Target the second
	// one of a rename or link.
	Name, Path, Target string
	// Detail is an ioctl's request, openat's flags, or 0.
	Detail uint64
}

// Tracer answers for the calls of one process and of its children.
type Tracer struct {
	listener, pid int
	layouts       map[int32]layout
	// threads are those of the process itself.
	threads map[uint32]bool
	ended   chan struct{}

	mu     sync.Mutex
	decide func(*Call) syscall.Errno
}

// Ask has decide asked for each call that is made from now on; nil lets all of them pass. What was asked before
// has returned.
func (t *Tracer) Ask(decide func(*Call) syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.decide = decide
}

// Wait returns when the process and its children have ended.
func (t *Tracer) Wait() { <-t.ended }

// notification is struct seccomp_notif.
type notification struct {
	id         uint64
	tid, flags uint32
	nr         int32
	arch       uint32
	pointer    uint64
	arguments  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// serve ends when all processes with the filter have ended.
func (t *Tracer) serve() {
	defer close(t.ended)
	defer unix.Close(t.listener)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	t.threads = map[uint32]bool{}

	for {
		ready := []unix.PollFd{{Fd: int32(t.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}

		switch {
		case ready[0].Revents&unix.POLLIN != 0:
			t.answer()
		case ready[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
			return
		}
	}
}

func (t *Tracer) answer() {
	var got notification
	if !t.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&got)) {
		return // the caller was killed meanwhile
	}

	reply := response{id: got.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}

	if errno := t.ask(&got); errno != 0 {
		reply.flags, reply.errno = 0, -int32(errno)
	}

	t.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
}

func (t *Tracer) ask(got *notification) syscall.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.decide == nil {
		return 0
	}

	// What was read from a process that has ended since may be another's.
	call := t.decode(got)
	if !t.control(ioctlIsLive, unsafe.Pointer(&got.id)) {
		return 0
	}

	return t.decide(call)
}

func (t *Tracer) control(request uintptr, argument unsafe.Pointer) bool {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(t.listener), request, uintptr(argument))
		if errno != unix.EINTR {
			return errno == 0
		}
	}
}

func (t *Tracer) decode(n *notification) *Call {
	how := t.layouts[n.nr]
	call := &Call{Name: how.name, Tool: t.tool(n.tid)}

	switch {
	case how.path != none:
		call.Path = path(n, how.dir, how.path)
	case how.fd != none:
		call.Path = descriptor(n.tid, int32(n.arguments[how.fd]))
	}

	if how.target != none {
		call.Target = path(n, how.otherDir, how.target)
	}

	if how.detail != none {
		call.Detail = n.arguments[how.detail]
	}

	return call
}

// tool is empty for the process itself. Its threads are remembered: most calls
// are theirs.
func (t *Tracer) tool(tid uint32) string {
	if t.threads[tid] {
		return ""
	}

	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", t.pid, tid)); err == nil {
		t.threads[tid] = true

		return ""
	}

	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return "ended"
	}

	return strings.TrimSpace(string(name))
}

// path resolves as the kernel does, but for symbolic links.
func path(n *notification, dir, at int) string {
	name := readString(n.tid, uintptr(n.arguments[at]))

	if rest, ok := strings.CutPrefix(name, "/proc/self/fd/"); ok {
		number, beneath, _ := strings.Cut(rest, "/")

		return filepath.Join(link(fmt.Sprintf("/proc/%d/fd/%s", n.tid, number)), beneath)
	}

	if filepath.IsAbs(name) || dir == none {
		return name
	}

	from := int32(n.arguments[dir])
	if from == unix.AT_FDCWD {
		return filepath.Join(link(fmt.Sprintf("/proc/%d/cwd", n.tid)), name)
	}

	if directory := descriptor(n.tid, from); name == "" {
		return directory
	} else {
		return filepath.Join(directory, name)
	}
}

func descriptor(tid uint32, fd int32) string { return link(fmt.Sprintf("/proc/%d/fd/%d", tid, fd)) }

func link(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}

	return strings.TrimSuffix(target, " (deleted)")
}

// readString reads a path of the process. The second part may be beyond what is
// mapped.
func readString(tid uint32, at uintptr) string {
	if at == 0 {
		return ""
	}

	buffer := make([]byte, unix.PathMax)
	page := uintptr(os.Getpagesize())
	first := int(page - at%page)
	local := []unix.Iovec{{Base: &buffer[0], Len: unix.PathMax}}
	remote := []unix.RemoteIovec{{Base: at, Len: first}, {Base: at + uintptr(first), Len: unix.PathMax - first}}

	n, err := unix.ProcessVMReadv(int(tid), local, remote, 0)
	if err != nil {
		return ""
	}

	text, _, _ := bytes.Cut(buffer[:n], []byte{0})

	return string(text)
}
