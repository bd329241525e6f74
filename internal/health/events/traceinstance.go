package events

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

const (
	instancesDir = "instances"
	allEventsOn  = "events/enable"
	// instanceMode is for the owner only: a trace shows all users' activity.
	instanceMode = 0o700
	// traceBufferKB is for each CPU: a thousand errors, until the next read.
	traceBufferKB = 64
	// abandonedAfter is far longer than a driver takes between creating its instance
	// and locking it.
	abandonedAfter = time.Minute
)

// traceInstance is a tracing instance of the driver, independent of all other tracing
// on the machine.
type traceInstance struct {
	*os.Root

	path string
	// lock is the directory, locked while the instance is used: the lock of a killed
	// driver ends with its process.
	lock *os.File
}

// openInstance makes the instance, or takes over the one of a driver that was
// killed.
func openInstance(root *os.Root, name string) (*traceInstance, error) {
	if err := root.Mkdir(path.Join(instancesDir, name), instanceMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, explained(err, "tracing instances can't be made")
	}

	return holdInstance(root, name)
}

// holdInstance locks an instance that is there.
func holdInstance(root *os.Root, name string) (*traceInstance, error) {
	where := path.Join(instancesDir, name)

	dir, err := root.OpenRoot(where)
	if err != nil {
		return nil, err
	}

	lock, err := dir.Open(".")
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}

	if err := flock.TryLock(lock, unix.LOCK_EX); err != nil {
		_, _ = lock.Close(), dir.Close()

		return nil, fmt.Errorf("%w: each running driver needs its own instance: %w", ErrInUse, err)
	}

	return &traceInstance{Root: dir, path: where, lock: lock}, nil
}

// loopDevices is the filter of an event for loop devices.
var loopDevices = fmt.Sprintf("dev >= %d && dev < %d", loop.Major<<minorBits, (loop.Major+1)<<minorBits)

// setUp turns the event on, last: what a killed driver has left in the buffer is
// dropped before.
func (t *traceInstance) setUp() error {
	loopErrors := fmt.Sprintf("%s && error != %d", loopDevices, -int(unix.EOPNOTSUPP))

	for _, setting := range []struct{ file, value string }{
		{allEventsOn, "0"},
		{"trace", ""},
		{"tracing_on", "1"},
		{"buffer_size_kb", strconv.Itoa(traceBufferKB)},
		// Otherwise readers are woken only when the buffer has filled up.
		{"buffer_percent", "0"},
		// Any user can choose the name of the running task, including line breaks.
		{"options/context-info", "0"},
		{blockErrorDir + "/filter", loopErrors},
		{blockErrorOn, "1"},
	} {
		if err := t.write(setting.file, setting.value); err != nil {
			return err
		}
	}

	return nil
}

// write opens with O_TRUNC: this clears the buffer, not the written value.
func (t *traceInstance) write(file, value string) error {
	opened, err := t.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}

	_, err = opened.WriteString(value)

	return errors.Join(err, opened.Close())
}

// remove removes the instance at the end. If that fails, for example because a program
// has it open, the next start reuses it.
func (t *traceInstance) remove(root *os.Root) {
	_ = t.write(allEventsOn, "0")
	_ = root.Remove(t.path)
	_ = t.lock.Close()
	_ = t.Close()
}

// sweepInstances removes the abandoned instances of other drivers, which were killed
// and not started again with the same socket. The kernel would fill them until the
// next reboot.
func sweepInstances(ctx context.Context, root *os.Root, own string) {
	kind := own[:strings.LastIndexByte(own, '-')+1]

	entries, err := fs.ReadDir(root.FS(), instancesDir)
	if err != nil || kind == "" {
		return
	}

	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || entry.Name() == own || !strings.HasPrefix(entry.Name(), kind) ||
			time.Since(info.ModTime()) < abandonedAfter || ctx.Err() != nil {
			continue
		}

		if abandoned, err := holdInstance(root, entry.Name()); err == nil {
			abandoned.remove(root)
		}
	}
}
