package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inode tells files apart, also when one goes and another gets its number
// while the tree is being copied.
type inode struct {
	major, minor uint32
	number       uint64
	born         unix.StatxTimestamp
}

// name is a file's name that stands for the inode.
func (i inode) name() string {
	return fmt.Sprintf("%d:%d-%d-%d.%d", i.major, i.minor, i.number, i.born.Sec, i.born.Nsec)
}

func inodeOf(found *unix.Statx_t) inode {
	return inode{major: found.Dev_major, minor: found.Dev_minor, number: found.Ino, born: found.Btime}
}

// link gives a file that is in the copy already one more name. It says whether
// there is one.
func (t *Copier) link(to *os.File, name string, found *unix.Statx_t) (bool, error) {
	if t.links == nil {
		err := t.scratch.Mkdir(t.linksName, directoryMode)
		if err == nil {
			t.links, err = OpenIn(t.scratch, t.linksName, os.O_RDONLY|unix.O_DIRECTORY, 0)
		}

		if err != nil {
			return false, err
		}

		return false, nil
	}

	first := inodeOf(found).name()

	err := unix.Linkat(int(t.links.Fd()), first, int(to.Fd()), name, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}

	// It has as many names as it can; with this one it needs no more.
	if errors.Is(err, unix.EMLINK) {
		return true, syscallError("renameat", unix.Renameat(int(t.links.Fd()), first, int(to.Fd()), name))
	}

	return true, syscallError("linkat", err)
}
