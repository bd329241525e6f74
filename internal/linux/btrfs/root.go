package btrfs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// ErrRootHidden is returned if the root of a subvolume cannot be opened, because only a directory
// inside of it is mounted.
var ErrRootHidden = errdefs.New(errdefs.ErrFailedPrecondition,
	"the root of its subvolume is not in the same mount; mount the whole subvolume, or make the directory a subvolume")

// OpenRoot opens the root of the subvolume that contains a directory of a btrfs, and returns the path
// of the directory in it. It does not leave the mount of the directory, because a path above it
// may lead to another subvolume. Errors: ErrRootHidden.
func OpenRoot(directory string) (root *os.File, within string, err error) {
	resolved, err := filepath.EvalSymlinks(directory)
	if err != nil {
		return nil, "", err
	}

	at := resolved

	first, err := statMount(at)
	if err != nil {
		return nil, "", err
	}

	for found := first; found.Ino != firstFree; {
		above := filepath.Dir(at)

		if found, err = statMount(above); err != nil {
			return nil, "", err
		}

		if above == at || found.Mnt_id != first.Mnt_id {
			return nil, "", fmt.Errorf("%s: %w", directory, ErrRootHidden)
		}

		at = above
	}

	if within, err = filepath.Rel(at, resolved); err != nil {
		return nil, "", err
	}

	if root, err = os.Open(at); err != nil {
		return nil, "", err
	}

	return root, within, nil
}

// statMount returns the inode and the mount of a path.
func statMount(path string) (unix.Statx_t, error) {
	const mask = unix.STATX_INO | unix.STATX_MNT_ID

	var found unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, mask, &found); err != nil {
		return found, &os.PathError{Op: "statx", Path: path, Err: err}
	}

	if found.Mask&unix.STATX_MNT_ID == 0 {
		return found, fmt.Errorf("%s: %w (its mount is not reported; Linux 5.8 does)", path, ErrRootHidden)
	}

	return found, nil
}
