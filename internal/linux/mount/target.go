package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Target is where something may be mounted: a name in an open directory. It is
// not safe to Close it while another goroutine uses it.
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

// Stat returns the mode of what is there: of a symlink itself, of a mount its root. The bool is false when nothing is there.
func (p *Target) Stat() (fs.FileMode, bool, error) {
	stat, err := p.statx(unix.STATX_TYPE | unix.STATX_MODE)

	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err != nil:
		return 0, false, p.wrapError("stat", err)
	}

	return fileMode(stat.Mode), true, nil
}

// MakeDir makes a directory and says whether it did; one that is there already
// is fine. Something else there is ErrWrongType or ErrSymlink.
func (p *Target) MakeDir(perm fs.FileMode) (made bool, err error) {
	err = unix.Mkdirat(p.dir(), p.name, uint32(perm.Perm()))
	runtime.KeepAlive(p.parent)

	if err == nil {
		return true, nil
	}

	if !errors.Is(err, unix.EEXIST) {
		return false, p.wrapError("make the directory", err)
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
	fd, err := retry(func() (int, error) {
		return unix.Openat(p.dir(), p.name,
			unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, uint32(perm.Perm()))
	})
	runtime.KeepAlive(p.parent)

	if err == nil {
		_ = unix.Close(fd)

		return true, nil
	}

	if !errors.Is(err, unix.EEXIST) {
		return false, p.wrapError("make the file", err)
	}

	stat, err := p.statx(unix.STATX_TYPE)
	if err != nil {
		return false, p.wrapError("make the file", err)
	}

	switch mode := fileMode(stat.Mode); {
	case mode.IsRegular(), mode&fs.ModeDevice != 0 && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return false, nil
	case mode&fs.ModeSymlink != 0:
		return false, p.wrapError("make the file", ErrSymlink)
	default:
		return false, p.wrapError("make the file", fmt.Errorf("%w: there is a %s", ErrWrongType, typeName(mode)))
	}
}

// Remove deletes an empty directory or an empty regular file; nothing there is
// fine. What has content stays (ErrNotEmpty), so does anything else
// (ErrWrongType) and what something is mounted on (ErrBusy).
func (p *Target) Remove() error {
	stat, err := p.statx(unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_SIZE)

	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return p.wrapError("remove", err)
	case stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return p.wrapError("remove", fmt.Errorf("%w: something is mounted there; unmount it first", ErrBusy))
	}

	flags := 0

	switch mode := fileMode(stat.Mode); {
	case mode.IsDir():
		flags = unix.AT_REMOVEDIR
	case !mode.IsRegular():
		return p.wrapError("remove", fmt.Errorf("%w: a %s is not Touchstone's", ErrWrongType, typeName(mode)))
	case stat.Size > 0:
		return p.wrapError("remove", fmt.Errorf("%w: the file has %d bytes; it was left alone", ErrNotEmpty, stat.Size))
	}

	err = unix.Unlinkat(p.dir(), p.name, flags)
	runtime.KeepAlive(p.parent)

	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		return p.wrapError("remove", fmt.Errorf("%w: it was left alone", ErrNotEmpty))
	case errors.Is(err, unix.EBUSY):
		return p.wrapError("remove", fmt.Errorf("%w: %w", ErrBusy, err))
	default:
		return p.wrapError("remove", err)
	}
}

// Open opens the root of the topmost mount at the target with O_PATH: for binding or
// stat, not for reading. ErrSymlink for a symlink. While it
// is open, the mount cannot be unmounted.
func (p *Target) Open() (*os.File, error) {
	file, err := p.open(unix.O_PATH)
	if err != nil {
		return nil, p.wrapError("open", err)
	}

	return file, nil
}

// OpenDir opens the directory that is there for reading and for ioctls, which
// OpenRoot's O_PATH does not allow.
func (p *Target) OpenDir() (*os.File, error) {
	file, err := p.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return nil, p.wrapError("open", err)
	}

	return file, nil
}

func (p *Target) open(flags uint64) (*os.File, error) {
	fd, err := openBeneath(p.dir(), p.name, flags)
	runtime.KeepAlive(p.parent)

	if err != nil {
		return nil, err
	}

	return os.NewFile(uintptr(fd), p.path), nil
}

// statx never asks a server for fresh data: the answer may be wanted of a mount
// whose server is gone.
func (p *Target) statx(mask int) (unix.Statx_t, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

	stat, err := retry(func() (unix.Statx_t, error) {
		var stat unix.Statx_t

		err := unix.Statx(p.dir(), p.name, flags, mask, &stat)

		return stat, err
	})
	runtime.KeepAlive(p.parent)

	return stat, err
}

// dir returns the parent's descriptor; the caller keeps p.parent alive.
func (p *Target) dir() int { return int(p.parent.Fd()) }

func (p *Target) wrapError(verb string, err error) error {
	return fmt.Errorf("%s %s: %w", verb, quote(p.path), err)
}

func fileMode(mode uint16) fs.FileMode {
	result := fs.FileMode(mode) & fs.ModePerm

	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		result |= fs.ModeDir
	case unix.S_IFLNK:
		result |= fs.ModeSymlink
	case unix.S_IFBLK:
		result |= fs.ModeDevice
	case unix.S_IFCHR:
		result |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFIFO:
		result |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		result |= fs.ModeSocket
	}

	if mode&unix.S_ISUID != 0 {
		result |= fs.ModeSetuid
	}

	if mode&unix.S_ISGID != 0 {
		result |= fs.ModeSetgid
	}

	if mode&unix.S_ISVTX != 0 {
		result |= fs.ModeSticky
	}

	return result
}

func typeName(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "symlink"
	case mode&fs.ModeCharDevice != 0:
		return "character device"
	case mode&fs.ModeDevice != 0:
		return "block device"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	default:
		return "socket"
	}
}
