package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// ScratchObject is an object in scratch.
type ScratchObject struct {
	ID, Path string
	// Bytes is its space in the pool.
	Bytes int64
	// InProgress means that a process has it locked.
	InProgress bool
}

// Inspection is a pool that is read without being changed, but for the lock of its controller: no object
// can be made in it or removed from it. A directory that is missing in it is empty.
type Inspection struct {
	label
	controllerLock
	objects
}

// findSubdirectory returns nil if the pool does not have the subdirectory.
func (l label) findSubdirectory(name string) (*os.Root, error) {
	root, err := l.openSubdirectory(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented: no directory
	}

	return root, err
}

// Inspect opens the pool at directory for reading.
func Inspect(name, directory string) (*Inspection, error) {
	at, err := labelOf(name, directory, os.OpenRoot)
	if err != nil {
		return nil, fmt.Errorf("open pool %q: %w", name, err)
	}

	stored, err := openObjects(at, label.findSubdirectory, layout.Images, layout.Directories, layout.Snapshots, layout.Scratch)
	if err != nil {
		return nil, err
	}

	return &Inspection{label: at, controllerLock: controllerLock{label: at}, objects: stored}, nil
}

// Close releases the lock and closes the directories.
func (i *Inspection) Close() error { return errors.Join(i.unlock(), i.close()) }

// Lstat returns the file information of what has the name of an object. Errors: ErrMissing.
func (i *Inspection) Lstat(object Object) (fs.FileInfo, error) { return i.lstat(object) }

// ReadIdentity returns the identity of the pool, "" if it has none.
func (i *Inspection) ReadIdentity() (string, error) { return readIdentity(i.directory) }

// ListScratch calls visit for each object that is being made, or that a crash left, in no order,
// until visit returns an error.
func (i *Inspection) ListScratch(ctx context.Context, visit func(ScratchObject) error) error {
	found := map[string]struct{}{}
	note := func(id string) error {
		found[id] = struct{}{}

		return nil
	}

	scratch, exists := i.roots[layout.Scratch]
	if !exists {
		return nil
	}

	err := errors.Join(listIDs(ctx, scratch, layout.ImageSuffix, note), listIDs(ctx, scratch, "", note))
	if err != nil {
		return fmt.Errorf("list the scratch of pool %q: %w", i.name, err)
	}

	for id := range found {
		if err := visitScratch(ctx, scratch, id, visit); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("scratch of %s in pool %q: %w", id, i.name, err)
		}
	}

	return nil
}

// visitScratch passes the image and the directory of an id to visit as one object.
func visitScratch(ctx context.Context, scratch *os.Root, id string, visit func(ScratchObject) error) error {
	left := ScratchObject{ID: id}

	for _, name := range []string{id + layout.ImageSuffix, id} {
		usage, err := usageIn(ctx, scratch, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err != nil {
			return err
		}

		left.Path = filepath.Join(scratch.Name(), name)
		left.Bytes += usage.Bytes
	}

	var err error
	if left.InProgress, err = isScratchLocked(scratch, id); err != nil {
		return err
	}

	return visit(left)
}

// isScratchLocked reports whether a process has locked the scratch of an id, without creating it.
func isScratchLocked(scratch *os.Root, id string) (bool, error) {
	file, err := tree.OpenIn(scratch, id+layout.ImageSuffix, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}

	if err != nil {
		return false, err
	}
	defer file.Close()

	err = flock.TryLock(file, unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}

	if flock.Unsupported(err) {
		return false, nil
	}

	return false, err
}

// ListForeign calls visit with the path of each file in the pool's directories whose name is not
// one of the pool's, in no order, until visit returns an error.
func (i *Inspection) ListForeign(ctx context.Context, visit func(path string) error) error {
	for directory, suffixes := range map[string][]string{
		layout.Images:      {layout.ImageSuffix},
		layout.Directories: {""},
		layout.Snapshots:   {layout.ImageSuffix, ""},
		layout.Scratch:     {layout.ImageSuffix, "", layout.LinksSuffix},
	} {
		root, exists := i.roots[directory]
		if !exists {
			continue
		}

		err := listNames(ctx, root, func(name string) error {
			for _, suffix := range suffixes {
				if id, ok := strings.CutSuffix(name, suffix); ok && volume.IsID(id) {
					return nil
				}
			}

			return visit(filepath.Join(root.Name(), name))
		})
		if err != nil {
			return fmt.Errorf("list pool %q: %w", i.name, err)
		}
	}

	return nil
}
