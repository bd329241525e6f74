package events

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const mountedTracefs = "/sys/kernel/tracing"

// openTracefs opens tracefs at its mount point. Without one, as in most containers, it
// creates a detached mount, which is private and ends with the process.
func openTracefs() (*os.Root, error) {
	if root, err := os.OpenRoot(mountedTracefs); err == nil {
		if isWritableTracefs(root) {
			return root, nil
		}

		_ = root.Close()
	}

	return mountTracefs()
}

func isWritableTracefs(root *os.Root) bool {
	dir, err := root.Open(".")
	if err != nil {
		return false
	}
	defer dir.Close()

	var stat unix.Statfs_t

	return unix.Fstatfs(int(dir.Fd()), &stat) == nil &&
		stat.Type == unix.TRACEFS_MAGIC && stat.Flags&unix.ST_RDONLY == 0
}

func mountTracefs() (*os.Root, error) {
	fd, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)

	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, explained(err, "tracefs needs a kernel with CONFIG_TRACING")
	case err != nil:
		return nil, explained(err, "mounting tracefs needs CAP_SYS_ADMIN and Linux 5.2, or have it mounted at "+mountedTracefs)
	}

	defer func() { _ = unix.Close(fd) }()

	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, explained(err, "tracefs can't be set up")
	}

	mounted, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, explained(err, "tracefs can't be mounted")
	}

	defer func() { _ = unix.Close(mounted) }()

	// A detached mount is only reachable through its descriptor, which the root keeps.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mounted))
	if err != nil {
		return nil, fmt.Errorf("open the private mount of tracefs: %w", err)
	}

	return root, nil
}
