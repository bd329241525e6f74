package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// linkName returns the name of a file in the directory of links. It identifies the file also if its
// number is reused while the tree is copied.
func linkName(found *unix.Statx_t) string {
	return fmt.Sprintf("%d:%d-%d-%d.%d", found.Dev_major, found.Dev_minor, found.Ino, found.Btime.Sec, found.Btime.Nsec)
}

// link adds a name to a file that is copied already. It returns false for one that is not.
func (t *Copier) link(to *os.File, name string, found *unix.Statx_t) (bool, error) {
	if t.links == nil {
		err := syscallError("mkdirat", unix.Mkdirat(int(t.linksParent.Fd()), t.linksName, directoryMode))
		if err != nil {
			return false, err
		}

		t.links, err = OpenAt(t.linksParent, t.linksName, os.O_RDONLY|unix.O_DIRECTORY, 0)

		return false, err
	}

	first := linkName(found)

	err := unix.Linkat(int(t.links.Fd()), first, int(to.Fd()), name, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}

	// The file has the maximum number of links: use the one in the directory of links, which is not
	// needed any more.
	if errors.Is(err, unix.EMLINK) {
		return true, syscallError("renameat", unix.Renameat(int(t.links.Fd()), first, int(to.Fd()), name))
	}

	return true, syscallError("linkat", err)
}
