package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// Object is a volume or a snapshot in a pool.
type Object struct {
	ID       string
	Backing  volume.Backing
	Snapshot bool
}

// String names the object in messages.
func (o Object) String() string {
	if o.Snapshot {
		return "snapshot " + o.ID
	}

	return "volume " + o.ID
}

// form is what the objects of a backing are in the pool.
type form struct {
	backing volume.Backing
	// directory is the one with volumes, in which an object has its id and the suffix as its name.
	directory, suffix string
	fileType          fs.FileMode
	// openFlag has the kernel refuse what is of another type.
	openFlag int
	// emptyInodes is how many inodes one without data has, 0 if their number does not show that.
	emptyInodes int64
}

// forms are those of images and of directories.
var forms = [...]form{
	{backing: volume.BackingImage, directory: layout.Images, suffix: layout.ImageSuffix},
	{backing: volume.BackingDirectory, directory: layout.Directories, fileType: fs.ModeDir, openFlag: unix.O_DIRECTORY, emptyInodes: 1},
}

func (o Object) form() form {
	if o.Backing == volume.BackingDirectory {
		return forms[1]
	}

	return forms[0]
}

// fileName is the object's name in its directory.
func (o Object) fileName() string { return o.ID + o.form().suffix }

// IsEmpty reports whether an object with that usage has no data.
func (o Object) IsEmpty(usage tree.Usage) bool {
	return usage.Bytes == 0 || usage.Inodes == o.form().emptyInodes
}

// directory is the name of the pool's directory that contains the object.
func (o Object) directory() string {
	if o.Snapshot {
		return layout.Snapshots
	}

	return o.form().directory
}

// objects are the objects of a pool, as far as they have the same for every backing.
type objects struct {
	label

	// roots are the directories that the pool has, by their names.
	roots map[string]*os.Root
}

// openObjects opens subdirectories of a pool by a function. One for which it returns neither a directory nor
// an error is left out. An error closes the pool's directory, too.
func openObjects(of label, open func(of label, name string) (*os.Root, error), directories ...string) (objects, error) {
	o := objects{label: of, roots: map[string]*os.Root{}}

	for _, name := range directories {
		root, err := open(of, name)
		if err != nil {
			return objects{}, errors.Join(err, o.close())
		}

		if root != nil {
			o.roots[name] = root
		}
	}

	return o, nil
}

// close closes the directories, that of the pool last.
func (o *objects) close() error {
	var failures []error
	for _, root := range o.roots {
		failures = append(failures, root.Close())
	}

	return errors.Join(append(failures, o.directory.Close())...)
}

// parentOf returns the directory of the pool that contains the object. Errors: ErrMissing.
func (o *objects) parentOf(object Object) (*os.Root, error) {
	if err := checkID(object.ID); err != nil {
		return nil, err
	}

	root, found := o.roots[object.directory()]
	if !found {
		return nil, o.notFoundError(object.String(), fs.ErrNotExist)
	}

	return root, nil
}

// open opens an object without following a symlink: an image, or the root of a directory. Errors:
// ErrMissing.
func (o *objects) open(object Object, flag int) (*os.File, error) {
	parent, err := o.parentOf(object)
	if err != nil {
		return nil, err
	}

	file, err := tree.OpenIn(parent, object.fileName(), flag|object.form().openFlag, 0)
	if err != nil {
		return nil, o.notFoundError(object.String(), err)
	}

	return file, nil
}

func (o *objects) lstat(object Object) (fs.FileInfo, error) {
	parent, err := o.parentOf(object)
	if err != nil {
		return nil, err
	}

	info, err := parent.Lstat(object.fileName())
	if err != nil {
		return nil, o.notFoundError(object.String(), err)
	}

	return info, nil
}

// ObjectPath returns the absolute path of an object, for messages and for tools that take a path.
func (o *objects) ObjectPath(object Object) string {
	return filepath.Join(o.path, object.directory(), object.fileName())
}

// Open opens the image of an object, or the root of its directory, for reading, without following a
// symlink. Errors: ErrMissing.
func (o *objects) Open(object Object) (*os.File, error) { return o.open(object, os.O_RDONLY) }

// Find returns the volume of that id, whatever its backing, and the file information of its image or
// directory. Errors: ErrMissing.
func (o *objects) Find(id string) (found Object, info fs.FileInfo, err error) {
	for _, form := range forms {
		found = Object{ID: id, Backing: form.backing}
		if info, err = o.lstat(found); !errors.Is(err, ErrMissing) {
			break
		}
	}

	return found, info, err
}

// Stat returns the file information of a volume's image or directory with one system call, without
// following a symlink. Errors: ErrMissing.
func (o *objects) Stat(id string, backing volume.Backing) (fs.FileInfo, error) {
	return o.lstat(Object{ID: id, Backing: backing})
}

// Size returns the size of the object's image, and 0 for a directory that exists. It opens nothing: 3 µs.
// Errors: ErrMissing, also if the file is of another type.
func (o *objects) Size(object Object) (int64, error) {
	info, err := o.lstat(object)
	if err != nil {
		return 0, err
	}

	if info.Mode().Type() != object.form().fileType {
		return 0, fmt.Errorf("%s: %w %q at %s: a file of another type (%s) has its path",
			object, ErrMissing, o.name, o.path, info.Mode())
	}

	if info.IsDir() {
		return 0, nil // what the filesystem has for the names in it
	}

	return info.Size(), nil
}

// Usage measures what has the name of an object, whatever it is. For a directory
// it takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
func (o *objects) Usage(ctx context.Context, object Object) (tree.Usage, error) {
	parent, err := o.parentOf(object)
	if err != nil {
		return tree.Usage{}, err
	}

	usage, err := usageIn(ctx, parent, object.fileName())
	if err != nil {
		return tree.Usage{}, o.notFoundError(object.String(), err)
	}

	return usage, nil
}

func usageIn(ctx context.Context, parent *os.Root, name string) (tree.Usage, error) {
	info, err := parent.Lstat(name)
	if err != nil {
		return tree.Usage{}, err
	}

	if !info.IsDir() {
		return tree.Usage{Bytes: allocatedBytes(info), Inodes: 1}, nil
	}

	directory, err := tree.OpenIn(parent, name, unix.O_DIRECTORY, 0)
	if err != nil {
		return tree.Usage{}, err
	}
	defer directory.Close()

	return tree.Measure(ctx, directory, nil)
}

// checkID validates an id before a path is made of it; callers have validated it as well.
func checkID(id string) error {
	if !volume.IsID(id) {
		return fmt.Errorf("%q: %w", id, volume.ErrInvalidID)
	}

	return nil
}

// listBatch bounds the memory that a pool with very many volumes takes.
const listBatch = 4096

// List calls visit for every volume in the pool and then for every snapshot, otherwise in no order,
// until visit returns an error.
func (o *objects) List(ctx context.Context, visit func(Object) error) error {
	for _, snapshot := range []bool{false, true} {
		for _, form := range forms {
			object := Object{Backing: form.backing, Snapshot: snapshot}

			root, found := o.roots[object.directory()]
			if !found {
				continue
			}

			err := listIDs(ctx, root, form.suffix, func(id string) error {
				object.ID = id

				return visit(object)
			})
			if err != nil {
				return fmt.Errorf("list %s of pool %q: %w", object.directory(), o.name, err)
			}
		}
	}

	return nil
}

func listIDs(ctx context.Context, root *os.Root, suffix string, visit func(id string) error) error {
	return listNames(ctx, root, func(name string) error {
		if id, ok := strings.CutSuffix(name, suffix); ok && volume.IsID(id) {
			return visit(id)
		}

		return nil
	})
}

func listNames(ctx context.Context, root *os.Root, visit func(name string) error) error {
	directory, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("open %s: %w", root.Name(), err)
	}
	defer directory.Close()

	for {
		names, err := directory.Readdirnames(listBatch)
		for _, name := range names {
			if err := visit(name); err != nil {
				return err
			}
		}

		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", root.Name(), err)
		case ctx.Err() != nil:
			return fmt.Errorf("read %s: %w", root.Name(), ctx.Err())
		}
	}
}
