package tree

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
)

// Copier copies one tree as `cp -a --reflink=auto` does: it keeps modes, owners, times, extended
// attributes (and with them ACLs and capabilities), hard links, holes and special files, and shares
// blocks where the filesystem can.
//
// The source may change meanwhile: each name is opened once, without following symlinks, and
// everything is read through that descriptor. The target must not be accessible to others.
type Copier struct {
	data filecopy.Copier

	root *os.File
	// links is the directory linksName in linksParent, nil until it is needed. It has a link to each
	// copied file that has several names, named by the source's inode. A user controls the number
	// of these files, so they are not kept in memory.
	links       *os.File
	linksParent *os.File
	linksName   string
	// cannotClone is set once FICLONE has failed: the two trees can't share blocks.
	cannotClone bool
	allocated   int64
}

// NewCopier returns a copier into the directory root. It makes the directory linksName in
// linksParent if the source has hard links; the caller removes it. linksParent must be a directory
// from which files can be linked into root; it may be root.
func NewCopier(root, linksParent *os.File, linksName string) *Copier {
	return &Copier{root: root, linksParent: linksParent, linksName: linksName}
}

// Copy copies the directory source. It reports the bytes copied to progress, unless that is nil; the
// total is the size of source when the copy starts.
func (t *Copier) Copy(ctx context.Context, source *os.File, progress func(done, total int64)) error {
	if progress == nil {
		return t.copy(ctx, source)
	}

	before, err := Measure(ctx, source, nil)
	if err != nil {
		return err
	}

	t.data.ReportTo(progress, before.Bytes)

	if err := t.copy(ctx, source); err != nil {
		return err
	}

	// The total includes the blocks of directories, which no copy of a file reports.
	t.data.Copied(before.Bytes)

	return nil
}

// AllocatedBytes returns how many bytes the copy has allocated so far, shared ones included.
func (t *Copier) AllocatedBytes() int64 { return t.allocated }

// copy copies the content of source and then its attributes.
func (t *Copier) copy(ctx context.Context, opened *os.File) error {
	found, err := Stat(opened)
	if err != nil {
		return err
	}

	source, err := openForReading(opened, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer source.Close()

	if err := t.fill(ctx, source, t.root, ""); err != nil {
		return err
	}

	return copyError("/", t.inherit(source, t.root, ".", found))
}

// fill copies the entries of one directory into another; path is theirs, relative to the root of
// the tree.
func (t *Copier) fill(ctx context.Context, source, target *os.File, path string) error {
	return eachName(ctx, source, path, func(name, path string) error {
		return t.entry(ctx, source, target, name, path)
	})
}

// entry copies one name.
func (t *Copier) entry(ctx context.Context, from, to *os.File, name, path string) error {
	source, err := openPath(from, name)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed since the directory was read
	}

	if err != nil {
		return copyError(path, err)
	}
	defer source.Close()

	found, err := Stat(source)
	if err != nil {
		return copyError(path, err)
	}

	if found.Mode&unix.S_IFMT == unix.S_IFDIR {
		return t.directory(ctx, source, to, name, path, found)
	}

	err = t.file(ctx, source, to, name, found)
	if errors.Is(err, unix.EEXIST) {
		return nil // readdir may return a name twice while the directory changes
	}

	return copyError(path, err)
}

func (t *Copier) directory(ctx context.Context, pinned, to *os.File, name, path string, found *unix.Statx_t) error {
	// Accessible to root only until its content is complete.
	err := unix.Mkdirat(int(to.Fd()), name, directoryMode)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}

	if err != nil {
		return copyError(path, err)
	}

	source, err := openForReading(pinned, unix.O_DIRECTORY)
	if err != nil {
		return copyError(path, err)
	}
	defer source.Close()

	target, err := OpenAt(to, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return copyError(path, err)
	}
	defer target.Close()

	// Bound the descriptors to two per level.
	_ = pinned.Close()

	if err := t.fill(ctx, source, target, path); err != nil {
		return err
	}

	// After the content: writing it changes the times, and entries would inherit the ACL.
	return copyError(path, t.inherit(source, to, name, found))
}

// file copies anything but a directory.
func (t *Copier) file(ctx context.Context, source, to *os.File, name string, found *unix.Statx_t) error {
	if found.Nlink > 1 {
		if linked, err := t.link(to, name, found); linked || err != nil {
			return err
		}
	}

	var err error

	switch kind := uint32(found.Mode & unix.S_IFMT); kind {
	case unix.S_IFREG:
		err = t.regular(ctx, source, to, name, found)
	case unix.S_IFLNK:
		err = symlink(source, to, name)
	default:
		device := unix.Mkdev(found.Rdev_major, found.Rdev_minor)
		err = syscallError("mknodat", unix.Mknodat(int(to.Fd()), name, kind|fileMode, int(device)))
	}

	if err != nil {
		return err
	}

	if err := t.inherit(source, to, name, found); err != nil || found.Nlink <= 1 {
		return err
	}

	return syscallError("linkat", unix.Linkat(int(to.Fd()), name, int(t.links.Fd()), linkName(found), 0))
}

// Close closes the copier's descriptors. The caller removes the directory of links.
func (t *Copier) Close() {
	if t.links != nil {
		_ = t.links.Close()
	}
}

func (t *Copier) regular(ctx context.Context, pinned, to *os.File, name string, found *unix.Statx_t) error {
	source, err := openForReading(pinned, 0)
	if err != nil {
		return err
	}
	defer source.Close()

	target, err := OpenAt(to, name, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}

	return errors.Join(t.content(ctx, target, source, found), target.Close())
}

func (t *Copier) content(ctx context.Context, target, source *os.File, found *unix.Statx_t) error {
	if !t.cannotClone {
		err := filecopy.Clone(target, source)
		if err == nil && t.data.Copied != nil {
			t.data.Copied(int64(found.Blocks) * statBlock)
		}

		if !errors.Is(err, filecopy.ErrCloneUnsupported) {
			return err
		}

		// Any other error is the same for each file of the filesystem.
		t.cannotClone = !errors.Is(err, unix.EINVAL)
	}

	size := int64(found.Size)
	if err := target.Truncate(size); err != nil {
		return err
	}

	return t.data.Copy(ctx, target, source, size)
}

func symlink(source, to *os.File, name string) error {
	text := make([]byte, unix.PathMax)

	length, err := unix.Readlinkat(int(source.Fd()), "", text)
	if err != nil {
		return syscallError("readlinkat", err)
	}

	return syscallError("symlinkat", unix.Symlinkat(string(text[:length]), int(to.Fd()), name))
}
