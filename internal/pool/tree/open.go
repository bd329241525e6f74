package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

const (
	// directoryMode and fileMode are the modes of a copy until it is complete.
	directoryMode = 0o700
	fileMode      = 0o600
	// statBlock is the unit of st_blocks on any filesystem.
	statBlock = 512
)

const (
	// leaseLimit is how long an open waits for a lease to be released.
	leaseLimit = 5 * time.Second
	leasePause = 10 * time.Millisecond
)

// ErrLeased is returned if a process keeps a lease on a file (fcntl F_SETLEASE).
var ErrLeased = errdefs.New(errdefs.ErrFailedPrecondition, "a process holds a lease on the file; end it, or retry later")

// OpenIn opens a name in a directory without following a symlink. os.Root follows symlinks that
// stay within the directory, whatever flags are given, and those may lead to another volume.
func OpenIn(room *os.Root, name string, flag int, mode uint32) (*os.File, error) {
	directory, err := room.Open(".")
	if err != nil {
		return nil, err
	}
	defer directory.Close()

	return OpenAt(directory, name, flag, mode)
}

// InDirectory calls do with the directory opened as a file, for system calls that os.Root does not make.
func InDirectory(root *os.Root, do func(directory *os.File) error) error {
	directory, err := root.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()

	return do(directory)
}

// OpenAt opens a name in an open directory without following a symlink.
func OpenAt(directory *os.File, name string, flag int, mode uint32) (*os.File, error) {
	path := filepath.Join(directory.Name(), name)

	descriptor, err := eintr.RetryValue(func() (int, error) {
		return unix.Openat(int(directory.Fd()), name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}

	return os.NewFile(uintptr(descriptor), path), nil
}

// openPath opens a name with O_PATH, so that what is renamed to it later is not confused with it,
// no symlink is followed and no device or FIFO is opened. Mounts are refused: they do not belong to
// the volume.
func openPath(directory *os.File, name string) (*os.File, error) {
	file, err := openHow(directory, name, unix.O_PATH)
	if errors.Is(err, unix.EXDEV) {
		return nil, fmt.Errorf("something is mounted there; unmount it: %w", err)
	}

	return file, err
}

// openHow opens a name on the same mount, without following symlinks.
func openHow(parent *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}

	descriptor, err := eintr.RetryValue(func() (int, error) { return unix.Openat2(int(parent.Fd()), name, &how) })
	if err != nil {
		return nil, syscallError("openat2", err)
	}

	return os.NewFile(uintptr(descriptor), name), nil
}

// Stat returns the attributes of an open file, also of one opened with O_PATH.
func Stat(pinned *os.File) (*unix.Statx_t, error) {
	var found unix.Statx_t

	err := unix.Statx(int(pinned.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &found)

	return &found, syscallError("statx", err)
}

// openForReading opens a file for reading that was opened with O_PATH, without changing its access
// time if permitted.
func openForReading(pinned *os.File, flag int) (*os.File, error) {
	path := DescriptorPath(pinned)

	// Without O_NONBLOCK the open waits, uninterruptibly, for the owner of a lease: 45 s
	// (fs.lease-break-time).
	flag |= os.O_RDONLY | unix.O_NONBLOCK

	for end := time.Now().Add(leaseLimit); ; time.Sleep(leasePause) {
		file, err := os.OpenFile(path, flag|unix.O_NOATIME, 0)
		if errors.Is(err, unix.EPERM) {
			file, err = os.OpenFile(path, flag, 0)
		}

		if !errors.Is(err, unix.EAGAIN) {
			return file, err
		}

		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: %w", ErrLeased, err)
		}
	}
}

// OpenPinned opens a regular file for reading that was opened with O_PATH.
func OpenPinned(pinned *os.File) (*os.File, error) { return openForReading(pinned, 0) }

// DescriptorPath returns a path of an open file, for this process, that does not depend on its name.
func DescriptorPath(file *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
}

// syscallError adds the name of the system call.
func syscallError(name string, err error) error {
	return os.NewSyscallError(name, err)
}

// copyError adds the path of the file.
func copyError(path string, err error) error {
	if err != nil {
		return &fs.PathError{Op: "copy", Path: path, Err: err}
	}

	return nil
}
