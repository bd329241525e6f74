package tree

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Visit calls visit for a directory and for each directory and regular file below it, open for reading,
// without following symlinks or crossing mounts. It continues after an error and returns the first. A
// file that a process keeps a lease on is left out.
func Visit(ctx context.Context, directory *os.File, visit func(file *os.File, isDirectory bool) error) error {
	opened, err := openForReading(directory, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer opened.Close()

	v := visitor{visit: visit}
	v.keep("", visit(opened, true))
	v.keep("", v.within(ctx, opened, ""))

	return v.failure
}

type visitor struct {
	visit   func(file *os.File, isDirectory bool) error
	failure error
}

func (v *visitor) keep(path string, err error) {
	if v.failure == nil {
		v.failure = copyError(path, err)
	}
}

func (v *visitor) within(ctx context.Context, directory *os.File, path string) error {
	return eachName(ctx, directory, path, func(name, path string) error {
		v.keep(path, v.enter(ctx, directory, name, path))

		return nil
	})
}

func (v *visitor) enter(ctx context.Context, parent *os.File, name, path string) error {
	pinned, err := openPath(parent, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return nil // removed since, or a mount
	}

	if err != nil {
		return err
	}
	defer pinned.Close()

	found, err := Stat(pinned)
	if err != nil {
		return err
	}

	isDirectory := found.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDirectory && found.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}

	opened, err := openForReading(pinned, 0)
	if errors.Is(err, ErrLeased) {
		return nil
	}

	if err != nil {
		return err
	}
	defer opened.Close()

	// Bound the descriptors to one per level.
	_ = pinned.Close()

	v.keep(path, v.visit(opened, isDirectory))

	if !isDirectory {
		return nil
	}

	return v.within(ctx, opened, path)
}
