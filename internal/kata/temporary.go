package kata

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
)

// temporaryPrefix begins with what no entry's name has in it. What is written is
// locked by its writer.
const temporaryPrefix = ".touchstone-"

// writeMountInfo replaces the file atomically, so that a reader never reads a part of it.
// It is not synced, because guests do not survive a power failure either.
func writeMountInfo(root, dir *os.File, content []byte) error {
	file, err := makeTemporary(root)
	if err != nil {
		return err
	}
	defer file.Close()

	_, err = file.Write(content)
	if err == nil {
		err = unix.Renameat(int(root.Fd()), file.Name(), int(dir.Fd()), mountInfoFile)
	}

	if errors.Is(err, unix.EISDIR) {
		err = fmt.Errorf("%w: %q; no known program makes it: inspect and remove it", ErrNestedDirectory, mountInfoFile)
	}

	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", mountInfoFile, err), unlink(root, file.Name(), 0))
	}

	return nil
}

// makeTemporary makes a file that ClearTemporary does not remove while it is open.
func makeTemporary(root *os.File) (*os.File, error) {
	for attempt := 1; ; attempt++ {
		file, err := tryTemporary(root)
		// ClearTemporary may remove the file before it is locked.
		taken := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist)

		if !taken || attempt == attempts {
			return file, err
		}
	}
}

func tryTemporary(root *os.File) (*os.File, error) {
	name := temporaryPrefix + rand.Text()

	fd, err := eintr.RetryValue(func() (int, error) {
		return unix.Openat(int(root.Fd()), name,
			unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	})
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", root.Name(), err)
	}

	file := os.NewFile(uintptr(fd), name)

	err = flock.TryLock(file, unix.LOCK_EX)
	if err == nil {
		var stat unix.Stat_t
		if err = unix.Fstat(fd, &stat); err == nil && stat.Nlink == 0 {
			err = fs.ErrNotExist
		}
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), unlink(root, name, 0), file.Close())
	}

	return file, nil
}

// ClearTemporary removes what a killed writer left, and nothing that is being
// written.
//
// Errors: ErrUnsafeRoot, or what the filesystem says.
func (r *Root) ClearTemporary() error {
	root, err := r.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer root.Close()

	names, err := root.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("clear what a killed driver left: %w", err)
	}

	var failed error

	for _, name := range names {
		if strings.HasPrefix(name, temporaryPrefix) {
			if err := clearTemporary(root, name); failed == nil {
				failed = err
			}
		}
	}

	return failed
}

func clearTemporary(root *os.File, name string) error {
	file, err := openIn(root, name, unix.O_RDONLY)
	if errors.Is(err, errNoEntry) {
		// Gone by now, or a symlink: no writer makes one.
		return nil
	}

	if err != nil {
		return err
	}
	defer file.Close()

	found, err := file.Stat()
	if err != nil || !found.Mode().IsRegular() {
		return err
	}

	err = flock.Lock(file, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		// It is being written.
		return nil
	}

	if err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}

	return unlink(root, name, 0)
}
