package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// maxDepth is more than a path can name. A tree made deeper, step by step, would
// take the descriptors that other volumes need.
const maxDepth = 2048

const (
	// leaseLimit is how long an open waits for a lease to be given up.
	leaseLimit = 5 * time.Second
	leasePause = 10 * time.Millisecond
)

// ErrLeased says that a process keeps a lease on a file (fcntl F_SETLEASE).
var ErrLeased = errdefs.New(errdefs.ErrFailedPrecondition, "a process holds a lease on the file; end it, or retry later")

// copyTree copies a directory as `cp -a --reflink=auto` does: modes, owners,
// times, extended attributes and with them ACLs and capabilities, hard links,
// holes and special files are kept, and files share their blocks where they can.
func (c *Copy) copyTree(ctx context.Context) error {
	copier := treeCopier{root: c.tree, scratch: c.pool.scratch, linksName: c.target.ID + layout.LinksSuffix}
	defer func() {
		c.allocated = copier.allocated
		copier.close()
	}()

	if c.options.Progress == nil {
		return copier.copy(ctx, c.opened)
	}

	held, err := usageOfTree(ctx, c.opened)
	if err != nil {
		return err
	}

	copier.ReportTo(c.options.Progress, held.Bytes)

	if err := copier.copy(ctx, c.opened); err != nil {
		return err
	}

	// What directories themselves take is copied with what is in them.
	copier.copied(held.Bytes)

	return nil
}

func (c *Copy) commitTree() (int64, error) {
	// Told by a descriptor as old as the copy: no failed write is missed. To
	// sync file by file would take as many journal commits as there are files.
	if err := eintr.Retry(func() error { return unix.Syncfs(int(c.tree.Fd())) }); err != nil {
		return 0, syscallError("syncfs", err)
	}

	made, err := statx(c.tree)
	if err != nil {
		return 0, err
	}

	if err := c.pool.renameFromScratch(c.target); err != nil {
		return 0, err
	}

	if err := KeepTimes(c.tree, made); err != nil {
		return 0, err
	}

	// What was in place before, and the lock.
	return c.allocated, c.pool.discardScratch(c.target.ID)
}

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

// treeCopier copies a tree that may be changed meanwhile: each name is opened
// once, without following it, and all is asked of what was opened. The target
// is nobody else's.
type treeCopier struct {
	Copier

	root *os.File
	// links is the directory linksName in scratch, nil until it is needed: it has a
	// name, made of the source's inode, of each file in the copy that has several.
	// Their number is the tenant's choice, and takes no memory so.
	links     *os.File
	scratch   *os.Root
	linksName string
	// apart says that the two trees can't share blocks.
	cannotClone bool
	// held is how many bytes the copy takes so far.
	allocated int64
}

// copy makes root like source.
func (t *treeCopier) copy(ctx context.Context, opened *os.File) error {
	found, err := statx(opened)
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

// fill copies what is in one directory into another; path names both from the
// root of the tree.
func (t *treeCopier) fill(ctx context.Context, source, target *os.File, path string) error {
	return eachName(ctx, source, path, func(name, path string) error {
		return t.entry(ctx, source, target, name, path)
	})
}

// entry copies one name.
func (t *treeCopier) entry(ctx context.Context, from, to *os.File, name, path string) error {
	source, err := openPath(from, name)
	if errors.Is(err, unix.ENOENT) {
		return nil // it is gone since the directory was read
	}

	if err != nil {
		return copyError(path, err)
	}
	defer source.Close()

	found, err := statx(source)
	if err != nil {
		return copyError(path, err)
	}

	if found.Mode&unix.S_IFMT == unix.S_IFDIR {
		return t.directory(ctx, source, to, name, path, found)
	}

	err = t.file(ctx, source, to, name, found)
	if errors.Is(err, unix.EEXIST) {
		return nil // a directory that is changed may tell a name twice
	}

	return copyError(path, err)
}

func (t *treeCopier) directory(ctx context.Context, pinned, to *os.File, name, path string, found *unix.Statx_t) error {
	// Nobody but us until its content is complete.
	err := unix.Mkdirat(int(to.Fd()), name, directoryMode)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}

	var source, target *os.File

	if err == nil {
		source, err = openForReading(pinned, unix.O_DIRECTORY)
	}

	if err == nil {
		defer source.Close()

		target, err = OpenAt(to, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}

	if err != nil {
		return copyError(path, err)
	}
	defer target.Close()

	// Two descriptors a level are enough.
	_ = pinned.Close()

	if err := t.fill(ctx, source, target, path); err != nil {
		return err
	}

	// After the content: that changes its times, and would inherit its ACL.
	return copyError(path, t.inherit(source, to, name, found))
}

// file copies what is not a directory.
func (t *treeCopier) file(ctx context.Context, source, to *os.File, name string, found *unix.Statx_t) error {
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
		err = syscallError("mknodat", unix.Mknodat(int(to.Fd()), name, kind|imageMode, int(device)))
	}

	if err == nil {
		err = t.inherit(source, to, name, found)
	}

	if err == nil && found.Nlink > 1 {
		err = syscallError("linkat", unix.Linkat(int(to.Fd()), name, int(t.links.Fd()), inodeOf(found).name(), 0))
	}

	return err
}

// link gives a file that is in the copy already one more name. It says whether
// there is one.
func (t *treeCopier) link(to *os.File, name string, found *unix.Statx_t) (bool, error) {
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

// close gives the descriptor back. The directory goes with the scratch of the copy.
func (t *treeCopier) close() {
	if t.links != nil {
		_ = t.links.Close()
	}
}

func (t *treeCopier) regular(ctx context.Context, pinned, to *os.File, name string, found *unix.Statx_t) error {
	source, err := openForReading(pinned, 0)
	if err != nil {
		return err
	}
	defer source.Close()

	target, err := OpenAt(to, name, os.O_RDWR|os.O_CREATE|os.O_EXCL, imageMode)
	if err != nil {
		return err
	}

	return errors.Join(t.content(ctx, target, source, found), target.Close())
}

func (t *treeCopier) content(ctx context.Context, target, source *os.File, found *unix.Statx_t) error {
	if !t.cannotClone {
		err := Clone(target, source)
		if err == nil && t.copied != nil {
			t.copied(int64(found.Blocks) * statBlock)
		}

		if !errors.Is(err, ErrCloneUnsupported) {
			return err
		}

		// What else it may be is the filesystem's answer, for any file.
		t.cannotClone = !errors.Is(err, unix.EINVAL)
	}

	size := int64(found.Size)
	if err := target.Truncate(size); err != nil {
		return err //nolint:wrapcheck // it names the file
	}

	return t.Copy(ctx, target, source, size)
}

func symlink(source, to *os.File, name string) error {
	text := make([]byte, unix.PathMax)

	length, err := unix.Readlinkat(int(source.Fd()), "", text)
	if err != nil {
		return syscallError("readlinkat", err)
	}

	return syscallError("symlinkat", unix.Symlinkat(string(text[:length]), int(to.Fd()), name))
}

// inherit gives what was made as name all that source has beside its content.
// The order matters: a new owner takes setuid and capabilities away, an ACL
// changes the mode, and everything changes the times.
func (t *treeCopier) inherit(source, to *os.File, name string, found *unix.Statx_t) error {
	directory := int(to.Fd())

	var made unix.Stat_t
	if err := unix.Fstatat(directory, name, &made, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return syscallError("fstatat", err)
	}

	t.allocated += made.Blocks * statBlock

	// Who owns both needs no privilege.
	if made.Uid != found.Uid || made.Gid != found.Gid {
		if err := unix.Fchownat(directory, name, int(found.Uid), int(found.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return syscallError("fchownat", err)
		}
	}

	if err := copyXattrs(descriptorPath(source), descriptorPath(to)+"/"+name); err != nil {
		return err
	}

	if found.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(directory, name, uint32(found.Mode&^unix.S_IFMT), 0); err != nil {
			return syscallError("fchmodat", err)
		}
	}

	return setTimes(to, name, found)
}

// KeepTimes puts back what the exchange of two directories changes on xfs.
func KeepTimes(directory *os.File, made *unix.Statx_t) error {
	now, err := statx(directory)
	if err != nil || now.Mtime == made.Mtime {
		return err
	}

	if err := setTimes(directory, ".", made); err != nil {
		return err
	}

	return directory.Sync() //nolint:wrapcheck // the caller names both ends
}

func setTimes(directory *os.File, name string, found *unix.Statx_t) error {
	times := []unix.Timespec{timespec(found.Atime), timespec(found.Mtime)}

	return syscallError("utimensat", unix.UtimesNanoAt(int(directory.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW))
}

func timespec(stamp unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: stamp.Sec, Nsec: int64(stamp.Nsec)}
}

// pin opens a name of a directory for nothing but to be asked about: what comes
// to have that name later is not what is copied, a symlink is not followed, and
// no device or fifo is waked. What is mounted there is not the volume's.
func openPath(directory *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	}

	descriptor, err := eintr.RetryValue(func() (int, error) { return unix.Openat2(int(directory.Fd()), name, &how) })
	if errors.Is(err, unix.EXDEV) {
		return nil, fmt.Errorf("something is mounted there; unmount it: %w", err)
	}

	if err != nil {
		return nil, syscallError("openat2", err)
	}

	return os.NewFile(uintptr(descriptor), name), nil
}

func statx(pinned *os.File) (*unix.Statx_t, error) {
	var found unix.Statx_t

	err := unix.Statx(int(pinned.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &found)

	return &found, syscallError("statx", err)
}

// openForReading opens for reading what is pinned, and leaves its time of last
// access as it is, if it may.
func openForReading(pinned *os.File, flag int) (*os.File, error) {
	path := descriptorPath(pinned)

	// Without O_NONBLOCK the open waits for the holder of a lease, for 45 s and
	// unkillably (fs.lease-break-time).
	flag |= os.O_RDONLY | unix.O_NONBLOCK

	for end := time.Now().Add(leaseLimit); ; time.Sleep(leasePause) {
		file, err := os.OpenFile(path, flag|unix.O_NOATIME, 0)
		if errors.Is(err, unix.EPERM) {
			file, err = os.OpenFile(path, flag, 0)
		}

		if !errors.Is(err, unix.EAGAIN) {
			return file, err //nolint:wrapcheck // the caller names the file
		}

		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: %w", ErrLeased, err)
		}
	}
}

// descriptorPath is a path to what is open, whatever its name is by now.
func descriptorPath(file *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
}

// syscallError names the system call in an error.
func syscallError(name string, err error) error {
	return os.NewSyscallError(name, err) //nolint:wrapcheck // this is the wrapping
}

// of names the file in an error.
func copyError(path string, err error) error {
	if err == nil {
		return nil
	}

	return &fs.PathError{Op: "copy", Path: path, Err: err}
}
