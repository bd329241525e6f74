package tree

import (
	"cmp"
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Visit calls visit for a directory and for each directory and regular file below it, open for reading,
// without following symlinks or crossing mounts. It continues after an error and returns the first. A
// file that a process keeps a lease on is left out.
func Visit(ctx context.Context, directory *os.File, visit func(file *os.File, isDirectory bool) error) error {
	return walk(ctx, directory, false, func(file *os.File, found *unix.Statx_t) error {
		kind := found.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR {
			return visit(file, true)
		}

		if kind != unix.S_IFREG {
			return nil
		}

		opened, err := openForReading(file, 0)
		if errors.Is(err, ErrLeased) {
			return nil
		}

		if err != nil {
			return err
		}
		defer opened.Close()

		return visit(opened, false)
	})
}

// walk calls visit for a directory and for all that is below it but mounts: a directory is open for
// reading, anything else with O_PATH. It returns the first error, and continues after it unless stops.
func walk(ctx context.Context, directory *os.File, stops bool, visit func(file *os.File, found *unix.Statx_t) error) error {
	found, err := Stat(directory)
	if err != nil {
		return err
	}

	// The caller keeps its own descriptor.
	opened, err := openForReading(directory, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer opened.Close()

	w := walker{visit: visit, stops: stops, failure: copyError("", visit(opened, found))}
	w.within(ctx, opened, "")

	return w.failure
}

type walker struct {
	visit func(file *os.File, found *unix.Statx_t) error
	// stops means that the first failure ends the walk.
	stops   bool
	failure error
}

func (w *walker) keep(err error) { w.failure = cmp.Or(w.failure, err) }

// within walks what is below a directory.
func (w *walker) within(ctx context.Context, directory *os.File, path string) {
	if w.stops && w.failure != nil {
		return
	}

	w.keep(eachName(ctx, directory, path, func(name, path string) error {
		w.keep(copyError(path, w.enter(ctx, directory, name, path)))

		if w.stops {
			return w.failure
		}

		return nil
	}))
}

func (w *walker) enter(ctx context.Context, parent *os.File, name, path string) error {
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

	if found.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.visit(pinned, found)
	}

	opened, err := openForReading(pinned, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer opened.Close()

	// Bound the descriptors to one per level.
	_ = pinned.Close()

	w.keep(copyError(path, w.visit(opened, found)))
	w.within(ctx, opened, path)

	return nil
}
