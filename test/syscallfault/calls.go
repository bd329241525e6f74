package syscallfault

import "golang.org/x/sys/unix"

// none marks an argument that a call does not have.
const none = -1

// layout says which arguments of a system call name files. dir and path are the
// indices of a directory descriptor and of a path that is relative to it; fd is
// that of a descriptor; detail is that of a number that distinguishes calls.
type layout struct {
	name             string
	dir, path        int
	fd, detail       int
	otherDir, target int
}

func byDescriptor(name string) layout {
	return layout{name: name, dir: none, path: none, detail: none, otherDir: none, target: none}
}

func byPath(name string, dir, path int) layout {
	return layout{name: name, dir: dir, path: path, fd: none, detail: none, otherDir: none, target: none}
}

func withDetail(l layout, detail int) layout {
	l.detail = detail

	return l
}

// layouts are the system calls that are reported: what reads or changes files,
// directories, mounts and devices.
func layouts() map[int32]layout {
	return map[int32]layout{
		unix.SYS_READ:            byDescriptor("read"),
		unix.SYS_PREAD64:         byDescriptor("pread64"),
		unix.SYS_WRITE:           byDescriptor("write"),
		unix.SYS_PWRITE64:        byDescriptor("pwrite64"),
		unix.SYS_FSYNC:           byDescriptor("fsync"),
		unix.SYS_FDATASYNC:       byDescriptor("fdatasync"),
		unix.SYS_SYNCFS:          byDescriptor("syncfs"),
		unix.SYS_FALLOCATE:       withDetail(byDescriptor("fallocate"), 1),
		unix.SYS_FTRUNCATE:       byDescriptor("ftruncate"),
		unix.SYS_FSTAT:           byDescriptor("fstat"),
		unix.SYS_FSTATFS:         byDescriptor("fstatfs"),
		unix.SYS_FCHMOD:          byDescriptor("fchmod"),
		unix.SYS_FCHOWN:          byDescriptor("fchown"),
		unix.SYS_FLOCK:           byDescriptor("flock"),
		unix.SYS_LSEEK:           withDetail(byDescriptor("lseek"), 2),
		unix.SYS_GETDENTS64:      byDescriptor("getdents64"),
		unix.SYS_IOCTL:           withDetail(byDescriptor("ioctl"), 1),
		unix.SYS_COPY_FILE_RANGE: {name: "copy_file_range", dir: none, path: none, fd: 2, detail: none, otherDir: none, target: none},
		unix.SYS_FSCONFIG:        withDetail(byDescriptor("fsconfig"), 1),
		unix.SYS_FSMOUNT:         byDescriptor("fsmount"),
		unix.SYS_OPENAT:          withDetail(byPath("openat", 0, 1), 2),
		unix.SYS_OPENAT2:         byPath("openat2", 0, 1),
		unix.SYS_MKDIRAT:         byPath("mkdirat", 0, 1),
		unix.SYS_MKNODAT:         byPath("mknodat", 0, 1),
		unix.SYS_UNLINKAT:        byPath("unlinkat", 0, 1),
		unix.SYS_SYMLINKAT:       byPath("symlinkat", 1, 2),
		unix.SYS_FCHMODAT:        byPath("fchmodat", 0, 1),
		unix.SYS_FCHMODAT2:       byPath("fchmodat2", 0, 1),
		unix.SYS_FCHOWNAT:        byPath("fchownat", 0, 1),
		unix.SYS_UTIMENSAT:       byPath("utimensat", 0, 1),
		unix.SYS_READLINKAT:      byPath("readlinkat", 0, 1),
		unix.SYS_STATX:           byPath("statx", 0, 1),
		sysFstatat:               byPath("fstatat", 0, 1),
		unix.SYS_STATFS:          byPath("statfs", none, 0),
		unix.SYS_TRUNCATE:        byPath("truncate", none, 0),
		unix.SYS_MOUNT:           byPath("mount", none, 1),
		unix.SYS_UMOUNT2:         byPath("umount2", none, 0),
		unix.SYS_OPEN_TREE:       byPath("open_tree", 0, 1),
		unix.SYS_MOVE_MOUNT:      byPath("move_mount", 2, 3),
		unix.SYS_MOUNT_SETATTR:   byPath("mount_setattr", 0, 1),
		unix.SYS_FSOPEN:          byPath("fsopen", none, 0),
		unix.SYS_RENAMEAT:        {name: "renameat", dir: 0, path: 1, fd: none, detail: none, otherDir: 2, target: 3},
		unix.SYS_RENAMEAT2:       {name: "renameat2", dir: 0, path: 1, fd: none, detail: none, otherDir: 2, target: 3},
		unix.SYS_LINKAT:          {name: "linkat", dir: 0, path: 1, fd: none, detail: none, otherDir: 2, target: 3},
		unix.SYS_LISTMOUNT:       {name: "listmount", dir: none, path: none, fd: none, detail: none, otherDir: none, target: none},
		unix.SYS_STATMOUNT:       {name: "statmount", dir: none, path: none, fd: none, detail: none, otherDir: none, target: none},
		unix.SYS_SETXATTR:        byPath("setxattr", none, 0),
		unix.SYS_FSETXATTR:       byDescriptor("fsetxattr"),

		unix.SYS_OPEN_BY_HANDLE_AT: byDescriptor("open_by_handle_at"),
	}
}
