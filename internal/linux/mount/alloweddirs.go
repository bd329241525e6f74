package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// resolveStrictly lets a lookup go down only, across mounts (a staging path may
// lie beneath one) but through no symlink and no magic link of procfs.
const resolveStrictly = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// AllowedDirs are the directories in which the paths of requests may lie. It is safe for
// concurrent use, holds nothing open, and needs no Close.
type AllowedDirs struct {
	dirs     []string
	observer *observer
}

// NewAllowedDirs allows paths beneath dirs, which must be absolute. They need not
// exist yet, and may be symlinks themselves (/var/lib/kubelet is one on some
// systems): they come from the administrator. Each Target opens them afresh, so
// that no mount is held and one that is replaced is noticed.
func NewAllowedDirs(dirs ...string) (*AllowedDirs, error) {
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%w: none is named", ErrOutsideAllowed)
	}

	allowed := &AllowedDirs{dirs: make([]string, 0, len(dirs)), observer: newObserver()}

	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("allowed directory %q: %w", dir, ErrNotAbsolute)
		}

		if strings.ContainsRune(dir, 0) {
			return nil, fmt.Errorf("allowed directory %q: %w: it has a NUL", dir, ErrInvalidPath)
		}

		if dir = filepath.Clean(dir); !slices.Contains(allowed.dirs, dir) {
			allowed.dirs = append(allowed.dirs, dir)
		}
	}

	// The longest first, so that the first match is the closest.
	slices.SortFunc(allowed.dirs, func(a, b string) int { return len(b) - len(a) })

	return allowed, nil
}

// Target opens the directory that path lies in. Whether there is something at
// path itself is not opened. The Target must be closed, and soon: its
// descriptor keeps the mount that the parent lies on busy.
//
// Errors: ErrNotAbsolute, ErrInvalidPath, ErrOutsideAllowed (also for an allowed directory
// itself), ErrSymlink, ErrWrongType when a file stands where a directory must,
// and fs.ErrNotExist when the parent or the allowed directory is missing; the
// spec makes the CO create a target's parent.
func (p *AllowedDirs) Target(path string) (*Target, error) {
	dir, rest, err := p.locate(path)
	if err != nil {
		return nil, err
	}

	parent, err := openParent(dir, filepath.Dir(rest))
	if err != nil {
		return nil, err
	}

	return &Target{path: filepath.Join(dir, rest), name: filepath.Base(rest), parent: parent, observer: p.observer}, nil
}

// WithTarget calls do with the Target of path, which it closes. It returns nil where the parent is missing, at
// which nothing can be mounted. Errors: the others of Target; do's.
func (p *AllowedDirs) WithTarget(path string, do func(*Target) error) error {
	target, err := p.Target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer target.Close()

	return do(target)
}

// MakeParent makes the directory that path lies in, and those above it beneath the allowed directory, as far
// as they are missing. Errors: those of Target.
func (p *AllowedDirs) MakeParent(path string, perm fs.FileMode) error {
	target, err := p.Target(path)
	if err == nil {
		target.Close()
	}

	parent := filepath.Dir(filepath.Clean(path))
	if !errors.Is(err, fs.ErrNotExist) || p.CheckPath(parent) != nil {
		return err
	}

	if err := p.MakeParent(parent, perm); err != nil {
		return err
	}

	made, err := p.Target(parent)
	if err != nil {
		return err
	}
	defer made.Close()

	_, err = made.MakeDir(perm)

	return err
}

// CheckPath refuses paths that Target would refuse whatever exists: it accesses no file.
// Errors: ErrNotAbsolute, ErrInvalidPath, ErrOutsideAllowed.
func (p *AllowedDirs) CheckPath(path string) error {
	_, _, err := p.locate(path)

	return err
}

// locate returns the longest allowed directory that a path lies beneath, and the path from there.
func (p *AllowedDirs) locate(path string) (dir, rest string, err error) {
	if err := checkPath(path); err != nil {
		return "", "", err
	}

	// Without dot segments in it, Clean only drops repeated and final slashes.
	path = filepath.Clean(path)

	for _, dir := range p.dirs {
		if path == dir {
			return "", "", fmt.Errorf("%s: %w: it is the allowed directory itself; name a path beneath it",
				quote(path), ErrOutsideAllowed)
		}

		if rest, beneath := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/"); beneath {
			return dir, rest, nil
		}
	}

	return "", "", fmt.Errorf("%s: %w; it must be beneath %s", quote(path), ErrOutsideAllowed, strings.Join(p.dirs, " or "))
}

func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%w: it is empty", ErrNotAbsolute)
	case len(path) >= unix.PathMax:
		return fmt.Errorf("%s: %w: it has %d bytes and the kernel takes %d",
			quote(path), ErrInvalidPath, len(path), unix.PathMax-1)
	case path[0] != '/':
		return fmt.Errorf("%s: %w", quote(path), ErrNotAbsolute)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%s: %w: it has a NUL", quote(path), ErrInvalidPath)
	}

	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "." || segment == "..":
			return fmt.Errorf("%s: %w: it has a %q in it; name it without", quote(path), ErrInvalidPath, segment)
		case len(segment) > unix.NAME_MAX:
			return fmt.Errorf("%s: %w: a name in it has %d bytes and the kernel takes %d",
				quote(path), ErrInvalidPath, len(segment), unix.NAME_MAX)
		}
	}

	return nil
}

// quote keeps a hostile path from filling a log or forging lines in it.
func quote(path string) string {
	const enough = 512

	if len(path) > enough {
		return fmt.Sprintf("%q… (%d bytes)", path[:enough], len(path))
	}

	return fmt.Sprintf("%q", path)
}

// openParent opens rest beneath dir as O_PATH.
func openParent(dir, rest string) (*os.File, error) {
	top, err := eintr.RetryValue(func() (int, error) {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open the allowed directory %s: %w", dir, err)
	}

	if rest == "." {
		return os.NewFile(uintptr(top), dir), nil
	}

	defer func() { _ = unix.Close(top) }()

	path := filepath.Join(dir, rest)

	fd, err := openBeneath(top, rest, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open the directory %s: %w", quote(path), err)
	}

	return os.NewFile(uintptr(fd), path), nil
}

// openBeneath opens name beneath dir through no symlink at all, the last one
// included, and gives the errors that say so their names.
func openBeneath(dir int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolveStrictly}

	fd, err := openat2(dir, name, &how)

	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, fmt.Errorf("%w: %w", ErrSymlink, err)
	case errors.Is(err, unix.EXDEV):
		return -1, fmt.Errorf("%w: %w", ErrOutsideAllowed, err)
	case errors.Is(err, unix.ENOTDIR):
		return -1, fmt.Errorf("%w: %w", ErrWrongType, err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return -1, fmt.Errorf("%w: %w", ErrInvalidPath, err)
	case errors.Is(err, unix.ENOSYS):
		return -1, fmt.Errorf("%w: openat2 needs Linux 5.6: %w", ErrKernelUnsupported, err)
	}

	return fd, err
}

// openat2 opens again what a rename raced with, for which the kernel answers EAGAIN.
func openat2(dir int, name string, how *unix.OpenHow) (int, error) {
	const enough = 128

	for attempt := 1; ; attempt++ {
		fd, err := eintr.RetryValue(func() (int, error) { return unix.Openat2(dir, name, how) })
		if attempt == enough || !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}
