package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
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
	if err := c.take(os.O_RDWR|os.O_CREATE, unix.LOCK_EX); err != nil {
		return err
	}

	flock.WriteOwner(c.file, owner)

	return nil
}

// LockForReading excludes controllers until Close, while the pool is inspected. Errors:
// ErrControllerRunning.
func (c *controllerLock) LockForReading() error {
	err := c.take(os.O_RDONLY, unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it never had a controller of this version
	}

	return err
}

func (c *controllerLock) take(flag, how int) (err error) {
	defer errdefs.Wrapf(&err, "lock pool %q", c.name)

	file, err := tree.OpenIn(c.directory, layout.ControllerLock, flag, imageMode)
	if err != nil {
		return err
	}

	if err = flock.Lock(file, how); err != nil {
		running := fmt.Errorf("in use by %s: %w; stop that first or choose another directory", flock.ReadOwner(file), ErrControllerRunning)

		return errors.Join(lockError(file.Name(), err, running), file.Close())
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

// lockError wraps an error of flock, as held if another process has the lock. It returns nil for nil.
func lockError(path string, err, held error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: %w", path, held)
	case flock.Unsupported(err):
		return fmt.Errorf("lock %s: %w: %w", path, ErrNoLocks, err)
	default:
		return fmt.Errorf("lock %s: %w", path, err)
	}
}
