package syscallfault_test

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// possible are the errnos that the kernel may answer a call with. What only
// reads has fewer ways to fail than what allocates.
func possible(key string) []syscall.Errno {
	name := key
	if _, after, ok := strings.Cut(name, ": "); ok {
		name = after
	}

	name, path, _ := strings.Cut(name, " ")
	call, option, _ := strings.Cut(name, "+")

	switch call {
	case "openat", "openat2":
		switch {
		case option == "create":
			return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.EPERM}
		case strings.HasPrefix(path, "/dev/loop"):
			return []syscall.Errno{unix.EIO, unix.EMFILE, unix.EBUSY, unix.EPERM}
		default:
			return []syscall.Errno{unix.EIO, unix.EMFILE, unix.EPERM}
		}
	case "write", "pwrite64", "copy_file_range", "fallocate", "ftruncate", "truncate":
		if strings.HasPrefix(path, "/sys") {
			return []syscall.Errno{unix.EIO, unix.EBUSY, unix.EPERM}
		}

		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EPERM}
	case "fsync", "fdatasync", "syncfs":
		return []syscall.Errno{unix.EIO, unix.ENOSPC}
	case "unlinkat":
		// EBUSY is the answer for a mount point: a target path that something else is
		// mounted at stays, on purpose.
		if strings.HasPrefix(path, "kubelet") {
			return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EPERM}
		}

		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EPERM}
	case "renameat", "renameat2", "linkat", "symlinkat":
		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EPERM}
	case "mkdirat", "mknodat":
		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EPERM}
	case "fchmod", "fchown", "fchmodat", "fchownat", "utimensat", "setxattr", "fsetxattr":
		return []syscall.Errno{unix.EIO, unix.EPERM}
	case "mount", "move_mount", "mount_setattr", "fsconfig":
		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EPERM}
	case "open_tree", "fsopen", "fsmount":
		return []syscall.Errno{unix.EMFILE, unix.EPERM, unix.ENOSPC}
	case "umount2":
		return []syscall.Errno{unix.EBUSY, unix.EPERM}
	case "ioctl":
		return request(option)
	case "listmount", "statmount":
		return []syscall.Errno{unix.EPERM}
	default: // read, getdents64, stat, statfs, flock, lseek, readlinkat
		return []syscall.Errno{unix.EIO}
	}
}

func request(name string) []syscall.Errno {
	switch name {
	case "LOOP_CONFIGURE", "LOOP_CTL_ADD", "LOOP_CTL_REMOVE", "LOOP_CLR_FD":
		return []syscall.Errno{unix.EIO, unix.EBUSY, unix.EPERM}
	case "FICLONE", "SETFLAGS":
		return []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EPERM}
	case "FIFREEZE", "FITHAW", "FITRIM":
		return []syscall.Errno{unix.EIO, unix.EBUSY, unix.EPERM}
	default:
		return []syscall.Errno{unix.EIO, unix.EPERM}
	}
}
