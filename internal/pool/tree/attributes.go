package tree

import (
	"os"

	"golang.org/x/sys/unix"
)

// inherit copies owner, extended attributes, mode and times of source to name. The order matters:
// chown clears setuid and capabilities, an ACL changes the mode, and each call changes the times.
func (t *Copier) inherit(source, to *os.File, name string, found *unix.Statx_t) error {
	directory := int(to.Fd())

	var made unix.Stat_t
	if err := unix.Fstatat(directory, name, &made, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return syscallError("fstatat", err)
	}

	t.allocated += made.Blocks * statBlock

	// An unprivileged owner of both may not call chown.
	if made.Uid != found.Uid || made.Gid != found.Gid {
		if err := unix.Fchownat(directory, name, int(found.Uid), int(found.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return syscallError("fchownat", err)
		}
	}

	if err := copyXattrs(DescriptorPath(source), DescriptorPath(to)+"/"+name); err != nil {
		return err
	}

	if found.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(directory, name, uint32(found.Mode&^unix.S_IFMT), 0); err != nil {
			return syscallError("fchmodat", err)
		}
	}

	return setTimes(to, name, found)
}

// RestoreTimes sets the times that the directory had: XFS changes them when two directories are
// exchanged.
func RestoreTimes(directory *os.File, made *unix.Statx_t) error {
	now, err := Stat(directory)
	if err != nil || now.Mtime == made.Mtime {
		return err
	}

	if err := setTimes(directory, ".", made); err != nil {
		return err
	}

	return directory.Sync()
}

func setTimes(directory *os.File, name string, found *unix.Statx_t) error {
	times := []unix.Timespec{timespec(found.Atime), timespec(found.Mtime)}

	return syscallError("utimensat", unix.UtimesNanoAt(int(directory.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW))
}

func timespec(stamp unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: stamp.Sec, Nsec: int64(stamp.Nsec)}
}
