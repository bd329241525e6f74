package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// ErrControllerRunning is returned if another process is the controller of the pool.
var ErrControllerRunning = errors.New("a pool has one controller at a time")

// controllerLock is the lock of a pool's controller.
type controllerLock struct {
	label

	// file is open while this process holds the lock.
	file *os.File
}

// LockAsController makes this process the only controller of the pool until Close or the end of the
// process. To another controller the volumes of this one would be orphans. owner describes the
// process in the error of the second one. Errors: ErrControllerRunning, ErrNoLocks.
func (c *controllerLock) LockAsController(owner string) error {
	file, err := c.openLock(os.O_RDWR | os.O_CREATE)
	if err != nil {
		return err
	}

	if err = c.flock(file, unix.LOCK_EX); err != nil {
		return errors.Join(fmt.Errorf("take pool %q: %w", c.name, err), file.Close())
	}

	c.file = file

	flock.WriteOwner(file, owner)

	return nil
}

// LockForReading excludes controllers until Close, while the pool is inspected. Errors:
// ErrControllerRunning.
func (c *controllerLock) LockForReading() error {
	file, err := c.openLock(os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it never had a controller of this version
	}

	if err != nil {
		return err
	}

	if err = c.flock(file, unix.LOCK_SH); err != nil {
		return errors.Join(fmt.Errorf("stat pool %q: %w", c.name, err), file.Close())
	}

	c.file = file

	return nil
}

// unlock releases the lock for the next controller (see flock.Unlock). The file stays: removing a
// lock file would race with a process that opens it.
func (c *controllerLock) unlock() error {
	if c.file == nil {
		return nil
	}

	file := c.file
	c.file = nil

	err := flock.Unlock(file)

	// Nothing was written, and close fails in a pool whose file server is gone.
	_ = file.Close()

	if err != nil {
		return fmt.Errorf("unlock %s: %w", file.Name(), err)
	}

	return nil
}

func (c *controllerLock) openLock(flag int) (*os.File, error) {
	root, err := os.OpenRoot(c.path)
	if err != nil {
		return nil, fmt.Errorf("lock pool %q: %w", c.name, err)
	}
	defer root.Close()

	file, err := tree.OpenIn(root, layout.ControllerLock, flag, imageMode)
	if err != nil {
		return nil, fmt.Errorf("lock pool %q: %w", c.name, err)
	}

	return file, nil
}

func (c *controllerLock) flock(file *os.File, how int) error {
	err := flock.Lock(file, how)

	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s is in use by %s: %w; stop that first or choose another directory",
			c.path, flock.ReadOwner(file), ErrControllerRunning)
	case err != nil:
		return lockError(filepath.Join(c.path, layout.ControllerLock), err)
	default:
		return nil
	}
}

// lockError wraps an error of flock other than EWOULDBLOCK.
func lockError(path string, err error) error {
	if flock.Unsupported(err) {
		return fmt.Errorf("lock %s: %w: %w", path, ErrNoLocks, err)
	}

	return fmt.Errorf("lock %s: %w", path, err)
}
