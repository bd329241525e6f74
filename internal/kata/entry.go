package kata

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

const (
	mountInfoFile = "mountInfo.json"

	// maxFileBytes is far more than an assignment has.
	maxFileBytes = 64 << 10
	// attempts is how often it is tried to have a name that others fill or free.
	attempts = 16
	// temporaryPrefix begins the name of a file that is being written. No entry's name begins with
	// it.
	temporaryPrefix = ".touchstone-"
)

// errNoEntry says that Kata would find nothing there.
var errNoEntry = errors.New("no entry")

// openEntry opens an entry's directory. errNoEntry is returned for nothing at all
// and for what is no directory.
func openEntry(root *os.File, name string) (*os.File, error) {
	return openIn(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openIn opens or creates a file in a directory, and nothing that a symlink there points to.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := eintr.RetryValue(func() (int, error) {
		// O_NONBLOCK: opening a fifo would wait for its other end.
		return unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, fileMode)
	})

	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %s: %w", errNoEntry, name, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", name, err)
	default:
		return os.NewFile(uintptr(fd), name), nil
	}
}

// makeEntry opens an entry's directory. It creates a missing one, and replaces anything else that
// has its name.
func makeEntry(root *os.File, name string) (*os.File, error) {
	for attempt := 1; ; attempt++ {
		dir, err := openEntry(root, name)
		if err == nil {
			return restrictMode(dir)
		}

		if !errors.Is(err, errNoEntry) || attempt == attempts {
			return nil, err
		}

		err = unix.Mkdirat(int(root.Fd()), name, dirMode)
		if errors.Is(err, unix.EEXIST) {
			err = unlink(root, name, 0)
		}

		// A directory by now is what is wanted.
		if err != nil && !errors.Is(err, ErrNestedDirectory) {
			return nil, fmt.Errorf("make the directory %s: %w", name, err)
		}
	}
}

// restrictMode is for a directory that another program made, in its own way.
func restrictMode(dir *os.File) (*os.File, error) {
	found, err := dir.Stat()
	if err == nil && found.Mode().Perm() != dirMode {
		err = dir.Chmod(dirMode)
	}

	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}

	return dir, nil
}

// readEntry reads all but the target path. errNoEntry is returned for what is no entry.
func readEntry(root *os.File, name string) (Entry, error) {
	dir, err := openEntry(root, name)
	if err != nil {
		return Entry{}, err
	}
	defer dir.Close()

	content, err := readMountInfo(dir)
	if err != nil {
		return Entry{}, err
	}

	assignment, ok := parseMountInfo(content)
	if !ok {
		return Entry{}, fmt.Errorf("%w: %s is no object", errNoEntry, mountInfoFile)
	}

	sandbox, err := findSandbox(dir)
	if errors.Is(err, unix.ENOENT) {
		// A directory that was removed while it was open has not even a list.
		err = errNoEntry
	}

	return Entry{Assignment: assignment, Sandbox: sandbox}, err
}

func readMountInfo(dir *os.File) ([]byte, error) {
	file, err := openIn(dir, mountInfoFile, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	found, err := file.Stat()
	if err != nil {
		return nil, err
	}

	if !found.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no file", errNoEntry, mountInfoFile)
	}

	content, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}

	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", errNoEntry, mountInfoFile, maxFileBytes)
	}

	return content, nil
}

// temporaryName returns the name under which the assignment of an entry is written. There is one
// for each entry, so that the next write of the entry, or its removal, removes what a kill left.
func temporaryName(entry string) string {
	return fmt.Sprintf("%s%x", temporaryPrefix, sha256.Sum256([]byte(entry)))
}

// writeMountInfo replaces the file atomically, so that a reader never reads a part of it. It is
// not synced, because guests do not survive a power failure either.
func writeMountInfo(root, dir *os.File, entry string, content []byte) (err error) {
	name := temporaryName(entry)

	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", mountInfoFile, err), unlink(root, name, 0))
		}
	}()

	if err := unlink(root, name, 0); err != nil {
		return err
	}

	file, err := openIn(root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}

	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}

	err = unix.Renameat(int(root.Fd()), name, int(dir.Fd()), mountInfoFile)
	if errors.Is(err, unix.EISDIR) {
		err = nestedDirectory(mountInfoFile)
	}

	return err
}

// findSandbox returns the id that Kata put last beside the assignment. It never
// takes one away itself: not even when the pod's guest is replaced by another.
func findSandbox(dir *os.File) (string, error) {
	others, err := otherNames(dir)
	if err != nil {
		return "", err
	}

	var (
		sandbox string
		newest  time.Time
	)

	for _, name := range others {
		var stat unix.Stat_t

		err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}

		if err != nil {
			return "", fmt.Errorf("fstatat %s: %w", name, err)
		}

		at := time.Unix(stat.Mtim.Unix())
		if stat.Mode&unix.S_IFMT == unix.S_IFREG && (sandbox == "" || at.After(newest)) {
			sandbox, newest = name, at
		}
	}

	return sandbox, nil
}

// otherNames returns what lies beside the assignment, sorted.
func otherNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}

	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}

	slices.Sort(names)

	return slices.DeleteFunc(names, func(name string) bool { return name == mountInfoFile }), nil
}

// clearEntry removes what it can of all but the assignment.
func clearEntry(dir *os.File) error {
	others, err := otherNames(dir)
	for _, name := range others {
		err = cmp.Or(err, unlink(dir, name, 0))
	}

	return err
}

// removeEntry takes the assignment itself last: what a crash leaves is still one
// that is listed.
func removeEntry(root *os.File, name string) error {
	dir, err := openEntry(root, name)
	if errors.Is(err, errNoEntry) {
		return unlink(root, name, 0)
	}

	if err != nil {
		return err
	}
	defer dir.Close()

	for attempt := 1; ; attempt++ {
		if err := errors.Join(clearEntry(dir), unlink(dir, mountInfoFile, 0)); err != nil {
			return err
		}

		// Kata may have put a sandbox's id there in the meantime.
		err := unlink(root, name, unix.AT_REMOVEDIR)
		if !errors.Is(err, unix.ENOTEMPTY) || attempt == attempts {
			return err
		}
	}
}

// unlink removes a name; that it isn't there is fine.
func unlink(dir *os.File, name string, flags int) error {
	err := eintr.Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, flags) })

	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR):
		return nestedDirectory(name)
	default:
		return fmt.Errorf("unlinkat %q: %w", name, err)
	}
}

func nestedDirectory(name string) error {
	return fmt.Errorf("%w: %q; no known program makes it: inspect and remove it", ErrNestedDirectory, name)
}
