package ctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// madeByMount is an attribute of the directories that mount has made: umount removes them.
const madeByMount = "trusted.touchstone.made"

// makeParents makes the directories above a path that are missing.
func makeParents(path string) error {
	const mode = 0o755

	parent := filepath.Dir(path)

	if _, err := os.Lstat(parent); !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if err := makeParents(parent); err != nil {
		return err
	}

	err := os.Mkdir(parent, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil // another program was faster
	}

	if err != nil {
		return err
	}

	// The umask of an administrator would keep other users' programs out.
	if err := os.Chmod(parent, mode); err != nil {
		return err
	}

	// On a filesystem without such attributes the directory stays.
	_ = unix.Setxattr(parent, madeByMount, []byte{'1'}, 0)

	return nil
}

// removeParents removes the directories above a path that mount has made, as far as they are empty.
func removeParents(path string) {
	for parent := filepath.Dir(path); ; parent = filepath.Dir(parent) {
		if _, err := unix.Getxattr(parent, madeByMount, nil); err != nil || os.Remove(parent) != nil {
			return
		}
	}
}
