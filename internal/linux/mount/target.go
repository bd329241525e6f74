package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// Target is where something may be mounted: a name in an open directory. It must be closed,
// not while another goroutine uses it.
type Target struct {
	path     string
	name     string
	parent   *os.File
	observer *observer
}

// Path returns the path as it was asked for, without repeated slashes.
func (p *Target) Path() string { return p.path }

// Close closes the directory.
func (p *Target) Close() { _ = p.parent.Close() }

// Exists reports whether something is there, also a symlink. Its error is the filesystem's of a
// mount there: EIO for an XFS that has shut down.
func (p *Target) Exists() (bool, error) {
	_, err := p.statx(unix.STATX_TYPE)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}

	return err == nil, p.wrapError("stat", err)
}

// MakeDir makes a directory and says whether it did; one that is there already
// is fine. Something else there is ErrWrongType or ErrSymlink.
func (p *Target) MakeDir(perm fs.FileMode) (made bool, err error) {
	err = unix.Mkdirat(p.dir(), p.name, uint32(perm.Perm()))
	if !errors.Is(err, unix.EEXIST) {
		return err == nil, p.wrapError("make the directory", err)
	}

	// Opened and not statted: the filesystem of a mount there may fail stat.
	there, err := p.open(unix.O_PATH | unix.O_DIRECTORY)
	if err != nil {
		return false, p.wrapError("make the directory", err)
	}

	_ = there.Close()

	return false, nil
}

// MakeFile makes an empty regular file, for a device node to be bound onto, and
// says whether it did; a file that is there already is fine, and so is a device
// node that is mounted there. Something else there is ErrWrongType or
// ErrSymlink.
func (p *Target) MakeFile(perm fs.FileMode) (made bool, err error) {
	fd, err := eintr.RetryValue(func() (int, error) {
		return unix.Openat(p.dir(), p.name,
			unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, uint32(perm.Perm()))
	})

	switch {
	case err == nil:
		_ = unix.Close(fd)

		return true, nil
	case !errors.Is(err, unix.EEXIST):
		return false, p.wrapError("make the file", err)
	}

	stat, err := p.statx(unix.STATX_TYPE)
	isMounted := stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0

	switch kind := stat.Mode & unix.S_IFMT; {
	case err != nil:
	case kind == unix.S_IFREG, (kind == unix.S_IFBLK || kind == unix.S_IFCHR) && isMounted:
	case kind == unix.S_IFLNK:
		err = ErrSymlink
	default:
		err = fmt.Errorf("%w: there is a %s", ErrWrongType, typeNames[kind])
	}

	return false, p.wrapError("make the file", err)
}

// Remove deletes an empty directory or an empty regular file; nothing there is
// fine. What has content stays (ErrNotEmpty), so does anything else
// (ErrWrongType) and what something is mounted on (ErrBusy).
func (p *Target) Remove() error {
	stat, err := p.statx(unix.STATX_TYPE | unix.STATX_SIZE)

	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return p.wrapError("remove", err)
	case stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return p.wrapError("remove", fmt.Errorf("%w: something is mounted there; unmount it first", ErrBusy))
	}

	flags := 0

	switch kind := stat.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		flags = unix.AT_REMOVEDIR
	case kind != unix.S_IFREG:
		return p.wrapError("remove", fmt.Errorf("%w: a %s is not Touchstone's", ErrWrongType, typeNames[kind]))
	case stat.Size > 0:
		return p.wrapError("remove", fmt.Errorf("%w: the file has %d bytes; it was left alone", ErrNotEmpty, stat.Size))
	}

	err = unix.Unlinkat(p.dir(), p.name, flags)

	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		err = fmt.Errorf("%w: it was left alone", ErrNotEmpty)
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}

	return p.wrapError("remove", err)
}

// Open opens the root of the topmost mount at the target with O_PATH: for binding or
// stat, not for reading. ErrSymlink for a symlink. While it
// is open, the mount cannot be unmounted.
func (p *Target) Open() (*os.File, error) {
	file, err := p.open(unix.O_PATH)

	return file, p.wrapError("open", err)
}

// OpenDir opens the directory that is there for reading and for ioctls, which
// the O_PATH of Open does not allow.
func (p *Target) OpenDir() (*os.File, error) {
	file, err := p.open(unix.O_RDONLY | unix.O_DIRECTORY)

	return file, p.wrapError("open", err)
}

func (p *Target) open(flags uint64) (*os.File, error) {
	fd, err := openBeneath(p.dir(), p.name, flags)
	if err != nil {
		return nil, err
	}

	return os.NewFile(uintptr(fd), p.path), nil
}

// statx never asks a server for fresh data: the answer may be wanted of a mount
// whose server is gone.
func (p *Target) statx(mask int) (stat unix.Statx_t, err error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

	err = eintr.Retry(func() error { return unix.Statx(p.dir(), p.name, flags, mask, &stat) })

	return stat, err
}

// dir returns the parent's descriptor, which stays open until the caller's Close.
func (p *Target) dir() int { return int(p.parent.Fd()) }

// link returns the magic link to the parent, which leads to the very directory that was opened, whatever has
// become of its path.
func (p *Target) link() string { return "/proc/self/fd/" + strconv.Itoa(p.dir()) }

// wrapError returns nil for nil.
func (p *Target) wrapError(verb string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, quote(p.path), err)
	}

	return nil
}

// typeNames are the names of file types in messages.
var typeNames = map[uint16]string{
	unix.S_IFREG:  "file",
	unix.S_IFDIR:  "directory",
	unix.S_IFLNK:  "symlink",
	unix.S_IFCHR:  "character device",
	unix.S_IFBLK:  "block device",
	unix.S_IFIFO:  "named pipe",
	unix.S_IFSOCK: "socket",
}
