package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// Flags of FS_IOC_GETFLAGS, from linux/fs.h.
const (
	immutableFlag  = 0x10
	appendOnlyFlag = 0x20
)

// moveDirectory renames a directory. Errors: ENOTEMPTY or EEXIST if the new name is a directory
// that is not empty.
func moveDirectory(parent *os.File, name string, target *os.File, renamed string) error {
	err := withoutFlags(parent, name, false, func() error {
		return eintr.Retry(func() error { return unix.Renameat(int(parent.Fd()), name, int(target.Fd()), renamed) })
	})
	if isNotEmpty(err) || errors.Is(err, unix.ENOENT) {
		return err
	}

	return removalError(parent, name, err)
}

// removeEntry unlinks a file or removes an empty directory, after clearing the flags that forbid
// it; the flags of parent only if owned, that is if parent is removed as well. A missing name is no
// error. Errors: ENOTEMPTY or EEXIST for a directory that is not empty; ErrMounted.
func removeEntry(parent *os.File, name string, owned bool) error {
	err := withoutFlags(parent, name, owned, func() error {
		err := eintr.Retry(func() error { return unix.Unlinkat(int(parent.Fd()), name, 0) })
		if errors.Is(err, unix.EISDIR) {
			err = eintr.Retry(func() error { return unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR) })
		}

		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}

	if isNotEmpty(err) {
		return err // expected: adding the path would cost more than the call
	}

	return removalError(parent, name, err)
}

func isNotEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

func exists(directory *os.File, name string) bool {
	var found unix.Stat_t

	return unix.Fstatat(int(directory.Fd()), name, &found, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// withoutFlags calls change, and again after EPERM if it could clear immutable or append-only flags
// of the name, or of parent if owned.
func withoutFlags(parent *os.File, name string, owned bool, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}

	cleared := owned && clearFlags(parent)
	if file, err := openFlagged(parent, name); err == nil {
		cleared = clearFlags(file) || cleared
		_ = file.Close()
	}

	if !cleared {
		return err
	}

	return change()
}

// openFlagged opens a regular file or a directory; others have no flags, and opening a device or a
// FIFO has side effects.
func openFlagged(parent *os.File, name string) (*os.File, error) {
	var found unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &found, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, syscallError("fstatat", err)
	}

	if kind := found.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil, unix.EPERM
	}

	return openHow(parent, name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// clearFlags reports whether it has cleared a flag.
func clearFlags(file *os.File) bool {
	flags, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&(immutableFlag|appendOnlyFlag) == 0 {
		return false
	}

	flags &^= immutableFlag | appendOnlyFlag

	return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(flags)) == nil
}

// makeWritable ends that a subvolume of btrfs is read-only, which its owner may have made it.
func makeWritable(directory *os.File) error {
	found, err := btrfs.IsSubvolume(directory)
	if err != nil || !found {
		return err
	}

	return btrfs.SetReadOnly(directory, false)
}

// openWithin opens a subdirectory on the same mount, without following symlinks.
func openWithin(parent *os.File, name string) (*os.File, error) {
	return openHow(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// removalError adds the current path of the file, and ErrMounted if the cause is a mount.
func removalError(directory *os.File, name string, err error) error {
	if err == nil {
		return nil
	}

	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) && isMountRoot(directory, name) {
		err = fmt.Errorf("%w: %w", ErrMounted, err)
	}

	path, failed := os.Readlink(DescriptorPath(directory))
	if failed != nil {
		path = directory.Name() // longer than PATH_MAX
	}

	return &fs.PathError{Op: "remove", Path: filepath.Join(path, name), Err: err}
}

func isMountRoot(directory *os.File, name string) bool {
	var found unix.Statx_t

	err := unix.Statx(int(directory.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &found)

	return err == nil && found.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
