// Package holder finds the processes that keep a device or a filesystem in use: those that have
// it open, work in it or have files of it open, and those in whose mount namespace it is
// mounted; and the block devices that are made of it.
//
// It is for messages, after a call has failed or a probe has found something: it reads /proc, so it sees the processes of its
// own PID namespace only, and what it says may be over by then. In a container without the
// host's PID namespace it finds nothing.
package holder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Process is a process that holds a device, or a block device that is made of it. The zero value
// is none.
type Process struct {
	// PID is 0 if it is a block device.
	PID int
	// Command is the process' name, as in /proc/PID/comm.
	Command string
	// MountNamespace is the inode number of its mount namespace, as in /proc/PID/ns/mnt.
	MountNamespace uint64
	// Mount is where it is mounted in the process' mount namespace; empty if it is open.
	Mount string
	// Device is the node of the block device, such as /dev/loop7; empty for a process.
	Device string
}

// String returns "process 42 (fio) has it open" or "process 42 (sh) in mount namespace 4026532
// has it mounted at /mnt".
func (p Process) String() string {
	switch {
	case p.Device != "":
		return p.Name() + " is made of it"
	case p.Mount == "":
		return fmt.Sprintf("process %d (%s) has it open", p.PID, p.Command)
	default:
		return p.Name() + " has it mounted at " + p.Mount
	}
}

// Name returns "process 42 (fio) in mount namespace 4026532" or "block device /dev/loop7".
func (p Process) Name() string {
	if p.Device != "" {
		return "block device " + p.Device
	}

	return fmt.Sprintf("process %d (%s) in mount namespace %d", p.PID, p.Command, p.MountNamespace)
}

// IsRunning reports whether the process is still running, without another having its PID, or the
// block device exists and, for a loop device, has a backing file. It says nothing about what it
// holds by now.
func (p Process) IsRunning() bool {
	if p.Device != "" {
		path := filepath.Join(sysBlock, filepath.Base(p.Device))
		if strings.HasPrefix(p.Device, "/dev/loop") {
			path = filepath.Join(path, "loop")
		}

		_, err := os.Stat(path)

		return err == nil
	}

	return p.PID > 0 && command(p.PID) == p.Command && mountNamespace(p.PID) == p.MountNamespace
}

const (
	// maxDescribed bounds the length of a message.
	maxDescribed = 3
	// searchLimit bounds the time of a call that a search for its message may take.
	searchLimit = 2 * time.Second
)

// searching is the semaphore of Describe: of searches that hang one stays.
var searching = make(chan struct{}, 1)

// Describe names, for a message, the processes that search finds by OfDevice or OfMount, or says why they
// are unknown: a search that does not end in time hangs with the filesystem of an unrelated loop device.
func Describe(search func() ([]Process, error)) string {
	limit := time.After(searchLimit)
	described := make(chan string, 1)

	select {
	case searching <- struct{}{}:
		go func() {
			defer func() { <-searching }()

			described <- describe(search())
		}()
	case <-limit:
		return "its users are unknown: another search does not end"
	}

	select {
	case text := <-described:
		return text
	case <-limit:
		return "its users are unknown: the search does not end"
	}
}

func describe(processes []Process, err error) string {
	switch {
	case err != nil:
		return "its users are unknown: " + err.Error()
	case len(processes) == 0:
		return "no process visible here has it open or mounted, and no block device is made of it; " +
			"look in other containers and PID namespaces"
	}

	texts := make([]string, 0, maxDescribed+1)
	for _, each := range processes[:min(len(processes), maxDescribed)] {
		texts = append(texts, each.String())
	}

	if more := len(processes) - maxDescribed; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}

	return strings.Join(texts, ", ")
}

// OfDevice returns the processes that hold a block device, by PID: one for each mount namespace
// in which its filesystem is mounted, and each other than this that has the device, or a file of
// its filesystem, open. The block devices that are made of it follow.
func OfDevice(device uint64) ([]Process, error) {
	major, minor := unix.Major(device), unix.Minor(device)
	link, _ := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor))
	name := "/dev/" + filepath.Base(link)

	found, err := find(
		func(m *mountinfo.Info) bool {
			return m.Major == int(major) && m.Minor == int(minor) || m.Source == name
		},
		func(file *unix.Statx_t) bool { return isDevice(file, major, minor) || isIn(file, major, minor) },
	)

	return append(found, devicesOn(major, minor)...), err
}

// OfMount returns the other processes that have a file open, or work, in what is mounted at a
// path. Where that is a whole filesystem, they may have it open through any of its mounts, and the
// block devices that are made of its files follow; or those made of the block device that is mounted.
func OfMount(path string) ([]Process, error) {
	var target unix.Statx_t

	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_MNT_ID, &target)
	if err != nil {
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}

	point, err := mountOf(os.Getpid(), func(m *mountinfo.Info) bool { return uint64(m.ID) == target.Mnt_id })
	if err != nil {
		return nil, err
	}

	isWhole := point != nil && point.Root == "/"

	found, err := find(
		func(*mountinfo.Info) bool { return false },
		func(file *unix.Statx_t) bool {
			return file.Mnt_id == target.Mnt_id || isWhole && isIn(file, target.Dev_major, target.Dev_minor)
		},
	)

	switch {
	case target.Mode&unix.S_IFMT == unix.S_IFBLK:
		found = append(found, devicesOn(target.Rdev_major, target.Rdev_minor)...)
	case isWhole:
		found = append(found, devicesOn(target.Dev_major, target.Dev_minor)...)
	}

	return found, err
}

func isDevice(file *unix.Statx_t, major, minor uint32) bool {
	return file.Mode&unix.S_IFMT == unix.S_IFBLK && file.Rdev_major == major && file.Rdev_minor == minor
}

func isIn(file *unix.Statx_t, major, minor uint32) bool {
	return file.Dev_major == major && file.Dev_minor == minor
}

// find returns a process for each mount namespace with such a mount, and each other process with
// such a file open.
func find(isMount func(*mountinfo.Info) bool, isOpen func(*unix.Statx_t) bool) ([]Process, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}

	var found []Process

	seen := map[uint64]bool{}

	for _, each := range names {
		pid, err := strconv.Atoi(each.Name())
		if err != nil {
			continue
		}

		process := Process{PID: pid, Command: command(pid), MountNamespace: mountNamespace(pid)}

		if !seen[process.MountNamespace] {
			seen[process.MountNamespace] = true

			if at, err := mountOf(pid, isMount); err == nil && at != nil {
				process.Mount = at.Mountpoint
			}
		}

		if process.Mount != "" || pid != os.Getpid() && hasOpen(pid, isOpen) {
			found = append(found, process)
		}
	}

	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })

	return found, nil
}

func command(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}

	return strings.TrimSpace(string(text))
}

// mountNamespace returns 0 for a process that has ended, or is not to be seen.
func mountNamespace(pid int) (number uint64) {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	_, _ = fmt.Sscanf(link, "mnt:[%d]", &number)

	return number
}

// hasOpen reports whether a process has such a file open, or works in such a directory.
// DONT_SYNC: a file of a server that does not answer must not hang it.
func hasOpen(pid int, isOpen func(*unix.Statx_t) bool) bool {
	root := fmt.Sprintf("/proc/%d", pid)
	links := []string{root + "/cwd", root + "/root"}

	open, err := os.ReadDir(root + "/fd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}

	for _, each := range open {
		links = append(links, root+"/fd/"+each.Name())
	}

	return slices.ContainsFunc(links, func(link string) bool {
		var stat unix.Statx_t

		err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_MNT_ID, &stat)

		return err == nil && isOpen(&stat)
	})
}

// mountOf returns the first mount of a process' mount namespace that is one, or nil.
func mountOf(pid int, isMount func(*mountinfo.Info) bool) (*mountinfo.Info, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer file.Close()

	found, err := mountinfo.GetMountsFromReader(file, func(m *mountinfo.Info) (skip, stop bool) {
		is := isMount(m)

		return !is, is
	})
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}

	if len(found) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}

	return found[0], nil
}
