package syscallfault_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// point is one call of a step: the n-th one with this key.
type point struct {
	step, key string
	n         int
}

// injector decides on the calls of a site's driver.
type injector struct {
	site *site

	mu sync.Mutex
	// step is the one that is under way; the calls of none are let through.
	step string
	// seen counts the calls of the step.
	seen map[string]int
	// recorded is what was seen, in order, if it is not nil.
	recorded *[]point
	// armed is the call to fail and errno its answer, fired whether it was met.
	armed *point
	errno syscall.Errno
	fired string
}

// begin begins a step, with a call to fail or nil.
func (i *injector) begin(step string, armed *point, errno syscall.Errno) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.step, i.seen, i.armed, i.errno, i.fired = step, map[string]int{}, armed, errno, ""
}

// record appends all calls to points until it is called with nil.
func (i *injector) record(points *[]point) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.recorded = points
}

// end returns the call that has failed, or nothing.
func (i *injector) end() string {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.step, i.armed = "", nil

	return i.fired
}

func (i *injector) decide(call *syscallfault.Call) syscall.Errno {
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.step == "" {
		return 0
	}

	key := i.site.key(call)
	if key == "" {
		return 0
	}

	i.seen[key]++
	at := point{step: i.step, key: key, n: i.seen[key]}

	if i.recorded != nil {
		*i.recorded = append(*i.recorded, at)
	}

	if i.armed == nil || i.fired != "" || at != *i.armed {
		return 0
	}

	i.fired = fmt.Sprintf("%s %s", call.Name, call.Path)

	return i.errno
}

// key says what a call does to which kind of file, and is empty for calls that
// concern neither pool nor state, mounts nor devices.
func (s *site) key(call *syscallfault.Call) string {
	class := cmp.Or(s.class(call.Path), syscallfault.Outside(call))
	if class == "" {
		return ""
	}

	key := call.Name + detail(call) + " " + class
	if call.Target != "" {
		key += " " + s.class(call.Target)
	}

	if call.Tool != "" {
		key = call.Tool + ": " + key
	}

	return key
}

func detail(call *syscallfault.Call) string {
	switch call.Name {
	case "openat":
		if call.Detail&unix.O_CREAT != 0 {
			return "+create"
		}
	case "ioctl":
		if name, ok := requests[call.Detail&0xffffffff]; ok {
			return "+" + name
		}

		return fmt.Sprintf("+%#x", call.Detail&0xffffffff)
	case "fallocate", "lseek", "fsconfig":
		return fmt.Sprintf("+%d", call.Detail)
	}

	return ""
}

var requests = map[uint64]string{
	unix.LOOP_CONFIGURE: "LOOP_CONFIGURE", unix.LOOP_CLR_FD: "LOOP_CLR_FD", unix.LOOP_CTL_ADD: "LOOP_CTL_ADD",
	unix.LOOP_GET_STATUS64: "LOOP_GET_STATUS64", unix.LOOP_SET_STATUS64: "LOOP_SET_STATUS64", unix.LOOP_SET_CAPACITY: "LOOP_SET_CAPACITY",
	unix.LOOP_CTL_GET_FREE: "LOOP_CTL_GET_FREE", unix.LOOP_SET_DIRECT_IO: "LOOP_SET_DIRECT_IO", unix.LOOP_CTL_REMOVE: "LOOP_CTL_REMOVE",
	unix.FICLONE: "FICLONE", unix.BLKGETSIZE64: "BLKGETSIZE64", unix.BLKFLSBUF: "BLKFLSBUF",
	unix.FS_IOC_GETFLAGS: "GETFLAGS", unix.FS_IOC_SETFLAGS: "SETFLAGS",
	0xc020660b: "FIEMAP", 0xc0045877: "FIFREEZE", 0xc0045878: "FITHAW", 0xc0185879: "FITRIM",
}

var (
	ids     = regexp.MustCompile(`csi-[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,}|[A-Za-z0-9_=-]{48,}`)
	numbers = regexp.MustCompile(`\d+`)
)

// class is a path in the driver's directories without what differs between runs, "" for another one.
func (s *site) class(path string) string {
	for at, name := range map[string]string{s.pool: "pool", s.state(): "state", s.kubelet(): "kubelet", s.direct(): "direct"} {
		if beneath(path, at) {
			return name + normalised(strings.TrimPrefix(path, at))
		}
	}

	return ""
}

func normalised(path string) string {
	return numbers.ReplaceAllString(ids.ReplaceAllString(path, "ID"), "N")
}

func beneath(path, directory string) bool {
	return path == directory || strings.HasPrefix(path, filepath.Clean(directory)+"/")
}
