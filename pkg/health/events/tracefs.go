package events

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const mountedTracefs = "/sys/kernel/tracing"

// openTracefs opens tracefs where it is mounted. Where it is not, as in most
// containers, it gets a mount that is attached nowhere: nobody sees it, and it
// is gone with the process.
func openTracefs() (*os.Root, error) {
	root, err := os.OpenRoot(mountedTracefs)
	if err == nil {
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

	// The descriptor is the only way to a mount without a place, and the root
	// keeps it.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mounted))
	if err != nil {
		return nil, fmt.Errorf("open the private mount of tracefs: %w", err)
	}

	return root, nil
}
