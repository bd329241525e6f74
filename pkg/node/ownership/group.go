package ownership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// ErrTooDeep says that a tree is deeper than any path can reach.
var ErrTooDeep = errors.New("directories are nested too deeply")

const (
	// maxDepth bounds the descriptors that a walk holds, one for each level. It
	// is more than what fits into one path in practice.
	maxDepth = 1000
	// batch bounds the names that are read at once.
	batch = 1024

	groupRead    = 0o040
	groupWrite   = 0o020
	groupExecute = 0o010
	anyExecute   = 0o111
)

// ChangeGroup lets group own what is in the directory root, open for reading: the
// group may read and write all of it and pass through directories, and what is
// made in those belongs to it, too. Where root itself is like that already
// no file is visited; it is changed last, so that an interrupted walk is
// repeated. Before a change it calls prepare. Errors: prepare's, ErrTooDeep, ctx's, the filesystem's.
func ChangeGroup(ctx context.Context, root *os.File, group uint32, prepare func() error) error {
	w := &walk{ctx: ctx, group: group}

	var stat unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &stat); err != nil {
		return fmt.Errorf("stat %s: %w", root.Name(), err)
	}

	if stat.Gid == group && stat.Mode == modeFor(stat.Mode) {
		return nil
	}

	if err := prepare(); err != nil {
		return err
	}

	if err := w.changeChildren(root, 1); err != nil {
		return fmt.Errorf("give %s to group %d: %w", root.Name(), group, err)
	}

	if err := w.change(int(root.Fd()), stat); err != nil {
		return fmt.Errorf("give %s to group %d: %w", root.Name(), group, err)
	}

	return nil
}

type walk struct {
	ctx   context.Context //nolint:containedctx // lives as long as one call
	group uint32
}

// changeChildren changes the group of everything below a directory.
func (w *walk) changeChildren(directory *os.File, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: more than %d levels", ErrTooDeep, maxDepth)
	}

	for {
		names, err := directory.Readdirnames(batch)
		for _, name := range names {
			if err := w.changeEntry(directory, name, depth); err != nil {
				return err
			}
		}

		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return fmt.Errorf("read a directory: %w", err)
		}
	}
}

// changeEntry changes the group of one entry, after everything below it.
func (w *walk) changeEntry(parent *os.File, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}

	fd, err := openEntry(parent, name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		// Gone meanwhile, or the root of another mount.
		return nil
	}

	if err != nil {
		return fmt.Errorf("open %q: %w", name, err)
	}
	defer unix.Close(fd)

	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("stat %q: %w", name, err)
	}

	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.descend(fd, depth); err != nil {
			return err
		}
	}

	if err := w.change(fd, stat); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}

	return nil
}

func (w *walk) descend(fd, depth int) error {
	opened, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a directory: %w", err)
	}

	directory := os.NewFile(uintptr(opened), ".")
	defer directory.Close()

	return w.changeChildren(directory, depth+1)
}

// change changes what differs. Device nodes are skipped: a write to one reaches something else than
// the volume.
func (w *walk) change(fd int, stat unix.Stat_t) error {
	kind := stat.Mode & unix.S_IFMT
	if kind == unix.S_IFBLK || kind == unix.S_IFCHR {
		return nil
	}

	if stat.Gid != w.group {
		const sameOwner = -1

		if err := unix.Fchownat(fd, "", sameOwner, int(w.group), unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("change the group: %w", err)
		}
	}

	mode := modeFor(stat.Mode)
	// A change of owner takes the setuid bit away, which says nothing of groups.
	if kind == unix.S_IFLNK || mode == stat.Mode && (stat.Gid == w.group || stat.Mode&unix.S_ISUID == 0) {
		return nil
	}

	// A descriptor of O_PATH can't be given to fchmod.
	if err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode&^unix.S_IFMT, 0); err != nil {
		return fmt.Errorf("change the mode: %w", err)
	}

	return nil
}

// modeFor returns the mode with the group's permissions added. A file loses its setgid bit, which meant the group that it belonged to.
func modeFor(mode uint32) uint32 {
	switch {
	case mode&unix.S_IFMT == unix.S_IFDIR:
		return mode | groupRead | groupWrite | groupExecute | unix.S_ISGID
	case mode&anyExecute != 0:
		mode |= groupExecute
	}

	return (mode | groupRead | groupWrite) &^ unix.S_ISGID
}

// openEntry opens an entry of the directory itself, whatever it is, and nothing
// that lies elsewhere.
func openEntry(directory *os.File, name string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}

	return eintr.RetryValue(func() (int, error) { return unix.Openat2(int(directory.Fd()), name, &how) })
}
