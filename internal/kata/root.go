package kata

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// DefaultRoot is the only root that Kata itself looks in.
	DefaultRoot = "/run/kata-containers/shared/direct-volumes"

	// dirMode and fileMode exclude all users but root: write access here would choose which device
	// of the host a guest gets.
	dirMode  = 0o700
	fileMode = 0o600

	// othersWrite are the permissions that make a root unsafe.
	othersWrite = 0o022
)

// Root is the directory in which Kata looks for assignments. Safe for concurrent
// use, by other drivers in other processes, too; calls for one target path must
// follow each other.
type Root struct {
	path string
}

// Entry is an assignment that stands in the root.
type Entry struct {
	Assignment

	// Sandbox is the id of the guest that has the volume, or "" while none does.
	// After a pod's guest was replaced there may be several; this is the newest.
	Sandbox string
}

// NewRoot returns the root at a path, which need not exist. Its parents may be
// symlinks (they are the administrator's), it itself may not.
func NewRoot(path string) *Root { return &Root{path: filepath.Clean(path)} }

// Put makes the assignment be the one that Kata finds for its target path, and
// makes the root, too, if need be. If it stands there already, nothing is touched
// and a sandbox keeps the volume; otherwise nothing else is left in the entry.
//
// Errors: ErrInvalidAssignment, ErrUnsafeRoot, ErrNestedDirectory, or what the filesystem says.
func (r *Root) Put(a Assignment) error { return r.put(a, clearEntry) }

// Restore is Put for an assignment that a guest may have by now. The
// assignment of a sandbox is not changed, even if a new one would differ; where it was lost, it is
// written again and the sandbox keeps the volume.
//
// Errors: as Put's.
func (r *Root) Restore(a Assignment) error {
	entry, ok, err := r.Get(a.TargetPath)
	if err != nil || ok && entry.Sandbox != "" {
		return err
	}

	return r.put(a, func(*os.File) error { return nil })
}

// put prepares an entry that says something else before it is written.
func (r *Root) put(a Assignment, prepare func(entry *os.File) error) error {
	content, err := a.MountInfo()
	if err != nil {
		return err
	}

	name, err := entryName(a.TargetPath)
	if err != nil {
		return err
	}

	root, err := r.make()
	if err != nil {
		return err
	}
	defer root.Close()

	dir, err := makeEntry(root, name)
	if err != nil {
		return r.wrapError("assign", a.TargetPath, err)
	}
	defer dir.Close()

	before, err := readMountInfo(dir)

	switch {
	case err == nil && bytes.Equal(before, content):
		return nil
	case err != nil && !errors.Is(err, errNoEntry):
		// The one that cannot be read may be this one, whose volume a sandbox uses.
		return r.wrapError("assign", a.TargetPath, err)
	}

	if err = prepare(dir); err == nil {
		err = writeMountInfo(root, dir, name, content)
	}

	return r.wrapError("assign", a.TargetPath, err)
}

// Remove makes nothing stand in the root for the target path: the assignment goes
// with everything beside it. Where something else than a directory has its name,
// that is removed, and not what a symlink points to. Nothing there is fine, and so is a path that
// Put refuses.
//
// Errors: ErrUnsafeRoot, ErrNestedDirectory, or what the filesystem says.
func (r *Root) Remove(targetPath string) error {
	name, err := entryName(targetPath)
	if err != nil {
		return nil // A path that is refused has no assignment.
	}

	root, err := r.open()
	if root == nil {
		return err
	}
	defer root.Close()

	return r.wrapError("remove the assignment of", targetPath, errors.Join(removeEntry(root, name), unlink(root, temporaryName(name), 0)))
}

// Get returns the assignment of a target path, also another driver's. The bool is false
// where Kata would find none, and what stands there instead is left alone.
//
// Errors: ErrUnsafeRoot, or what the filesystem says.
func (r *Root) Get(targetPath string) (Entry, bool, error) {
	name, err := entryName(targetPath)
	if err != nil {
		return Entry{}, false, nil // A path that is refused has no assignment.
	}

	root, err := r.open()
	if root == nil {
		return Entry{}, false, err
	}
	defer root.Close()

	return r.read(root, name, filepath.Clean(targetPath))
}

// read returns false for what is no entry.
func (r *Root) read(root *os.File, name, targetPath string) (Entry, bool, error) {
	entry, err := readEntry(root, name)
	if errors.Is(err, errNoEntry) {
		return Entry{}, false, nil
	}

	entry.TargetPath = targetPath

	return entry, err == nil, r.wrapError("read the assignment of", targetPath, err)
}

// List returns all assignments by target path, other drivers' too, as far as they
// can be read. What is none is passed over.
//
// Errors: ErrUnsafeRoot, or what the filesystem says.
func (r *Root) List() ([]Entry, error) {
	root, err := r.open()
	if root == nil {
		return nil, err
	}
	defer root.Close()

	names, err := root.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list the direct volumes: %w", err)
	}

	entries := make([]Entry, 0, len(names))

	for _, name := range names {
		target, ok := targetPathOf(name)
		if !ok {
			continue
		}

		entry, ok, err := r.read(root, name, target)
		if err != nil {
			return nil, err
		}

		if ok {
			entries = append(entries, entry)
		}
	}

	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.TargetPath, b.TargetPath) })

	return entries, nil
}

func (r *Root) make() (*os.File, error) {
	for {
		root, err := r.open()
		if root != nil || err != nil {
			return root, err
		}

		if err := os.MkdirAll(r.path, dirMode); err != nil {
			return nil, fmt.Errorf("make the directory for direct volumes: %w", err)
		}
	}
}

// open opens the root, if what is put there stays as it was put. It returns nil for one that does not exist.
func (r *Root) open() (*os.File, error) {
	root, err := os.OpenFile(r.path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // documented
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s: %w: there is a symlink or a file instead of a directory; remove that, or name another directory",
			r.path, ErrUnsafeRoot)
	case err != nil:
		return nil, fmt.Errorf("open the directory for direct volumes: %w", err)
	}

	if err := checkRoot(root); err != nil {
		_ = root.Close()

		return nil, fmt.Errorf("%s: %w", r.path, err)
	}

	return root, nil
}

func checkRoot(root *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}

	switch {
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%w: it belongs to uid %d; give it to uid %d (chown)", ErrUnsafeRoot, stat.Uid, os.Geteuid())
	case stat.Mode&othersWrite != 0:
		return fmt.Errorf("%w: its mode is %#o, and who can write there chooses which devices guests get; "+
			"take that from others (chmod go-w)", ErrUnsafeRoot, stat.Mode&^unix.S_IFMT)
	default:
		return nil
	}
}

// wrapError returns nil for nil.
func (r *Root) wrapError(verb, targetPath string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %q in %s: %w", verb, targetPath, r.path, err)
	}

	return nil
}
