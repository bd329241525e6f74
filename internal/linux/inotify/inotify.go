// Package inotify watches the entries of directories.
//
// It uses the system calls directly because fsnotify does not report that a directory was unmounted,
// after which no events follow.
package inotify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
)

const (
	// moves are events of entries of a directory, directoryMoves those of the directory itself.
	moves = appearances | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ATTRIB
	// appearances are events of entries that are there from now on.
	appearances = unix.IN_CREATE | unix.IN_MOVED_TO
	// The kernel reports IN_UNMOUNT and IN_IGNORED unasked.
	directoryMoves = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
	watched        = moves | unix.IN_MODIFY | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// bufferBytes holds more than a thousand events.
	bufferBytes = 64 << 10
)

// ErrGone is returned by Watch when a directory was removed, moved or unmounted.
var ErrGone = errors.New("it is there no longer")

// Kind is the kind of an Event.
type Kind int

// The kinds of events.
const (
	// Lost means that events were lost: any entry may have changed, of the directory of Path or, without that,
	// of all.
	Lost Kind = iota + 1
	// Appeared means that the entry was created or moved to its path.
	Appeared
	// Changed means that the entry was removed or moved away, or that its attributes (including its
	// link count) have changed.
	Changed
	// Written means that the file was written or truncated.
	Written
)

// Event says what happened to an entry.
type Event struct {
	Kind Kind
	// Path is absolute: the entry's or, of Lost, that of a directory that was removed, moved or unmounted. It is
	// empty if there were too many events.
	Path string
	// At is when the event was read.
	At time.Time
}

// Directories are what is watched.
type Directories struct {
	// List returns the paths, which are absolute, now.
	List func() []string
	// Changed returns a channel that is closed or sent to when List changes; nil means that it never does.
	// Directories that are no longer listed are watched until they are removed, moved or unmounted.
	Changed func() <-chan struct{}
	// Failed is called for a directory that cannot be watched, or not any more; the others still are. It must
	// not block, and may be called by several goroutines at a time. If it is nil, such a directory ends the watch.
	Failed func(err error)
}

// Fixed are directories that never change.
func Fixed(paths ...string) Directories {
	return Directories{List: func() []string { return paths }}
}

// Supported returns unix.ENOSYS for a kernel without inotify. A process that has all the instances
// that its user may have learns it from Watch.
func Supported() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)

	switch {
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("inotify needs a kernel with CONFIG_INOTIFY_USER: %w", err)
	case err == nil:
		_ = unix.Close(fd)
	}

	return nil
}

// Watch calls watching once the directories are watched, and again whenever those of a changed list are.
// It calls notify for each event until ctx ends, which is no error. Several pending events of one entry are
// delivered as one. While notify blocks, events wait in the kernel; if these are too many, they are Lost. A
// directory that is removed, moved or unmounted is reported as Lost; then the watch ends with ErrGone, or
// Failed gets it. Errors: ErrGone, or the kernel's.
func Watch(ctx context.Context, of Directories, watching func(), notify func(Event)) (err error) {
	w, err := NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()

	// Before the list, so that no change is missed.
	var changed <-chan struct{}
	if of.Changed != nil {
		changed = of.Changed()
	}

	if err := w.replace(of); err != nil {
		return err
	}

	watching()

	both, ctx := errgroup.WithContext(ctx)

	both.Go(func() error { return w.follow(ctx, of, changed, watching) })
	both.Go(func() error { return w.Run(ctx, notify, of.Failed) })

	return both.Wait()
}

// Watcher watches directories that are added and removed one by one. It is safe for concurrent use.
type Watcher struct {
	file *os.File

	mu sync.Mutex
	// directories are by watch descriptor; listed are those that are meant to be there.
	directories map[int32]string
	listed      []string
}

// NewWatcher returns a Watcher without directories. Error: the kernel's.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch directories: is fs.inotify.max_user_instances reached? %w", err)
	}

	return &Watcher{file: os.NewFile(uintptr(fd), "inotify"), directories: map[int32]string{}}, nil
}

// Close ends all watches, after Run.
func (w *Watcher) Close() error { return w.file.Close() }

// Run calls notify for each event until ctx ends, which is no error, and failed for a directory that is removed,
// moved or unmounted, as Watch does.
func (w *Watcher) Run(ctx context.Context, notify func(Event), failed func(err error)) (err error) {
	defer errdefs.Wrapf(&err, "watch directories")

	return ctxread.Each(ctx, w.file, bufferBytes, func(at time.Time, data []byte) error {
		defer ctxread.Pause(ctx, ctxread.BatchPause)

		return w.take(at, data, notify, failed)
	})
}

// Add watches a directory. Errors: fs.ErrNotExist, os.ErrClosed, or another of the kernel's.
func (w *Watcher) Add(directory string) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	var descriptor int

	err := w.control(func(fd int) (err error) {
		descriptor, err = unix.InotifyAddWatch(fd, directory, watched)

		return err
	})
	if err != nil {
		return fmt.Errorf("watch the directory %s: %w", directory, err)
	}

	if w.directories[int32(descriptor)] != directory {
		w.forget(directory) // another one that was there
	}

	w.directories[int32(descriptor)] = directory

	if !slices.Contains(w.listed, directory) {
		w.listed = append(w.listed, directory)
	}

	return nil
}

// Remove watches a directory no more. One that is not watched is no error.
func (w *Watcher) Remove(directory string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.forget(directory)
	w.listed = slices.DeleteFunc(w.listed, func(known string) bool { return known == directory })
}

// forget ends the watch of a directory. The kernel does not end that of a cgroup that was removed. The mutex is
// held.
func (w *Watcher) forget(directory string) {
	maps.DeleteFunc(w.directories, func(descriptor int32, known string) bool {
		if known == directory {
			_ = w.control(func(fd int) error {
				_, err := unix.InotifyRmWatch(fd, uint32(descriptor))

				return err // of one that the kernel has ended
			})
		}

		return known == directory
	})
}

// control calls do with the descriptor, which stays open and does not become blocking meanwhile.
func (w *Watcher) control(do func(fd int) error) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}

	if closed := conn.Control(func(fd uintptr) { err = do(int(fd)) }); closed != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, closed)
	}

	return err
}

// Directories returns those that are watched.
func (w *Watcher) Directories() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return slices.Collect(maps.Values(w.directories))
}

// follow watches the directories that are listed whenever they change, until ctx
// ends.
func (w *Watcher) follow(ctx context.Context, of Directories, changed <-chan struct{}, watching func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed: // Never, where it is nil.
		}

		changed = of.Changed()
		if err := w.replace(of); err != nil {
			return err
		}

		watching()
	}
}

// replace watches the directories that are listed now.
func (w *Watcher) replace(of Directories) error {
	w.mu.Lock()
	w.listed = nil
	w.mu.Unlock()

	for _, each := range of.List() {
		if err := passError(w.Add(filepath.Clean(each)), of.Failed); err != nil {
			return err
		}
	}

	return nil
}

// lost returns ErrGone for a watch that the kernel has removed, or passes it to failed. For a directory that
// is not listed any more it does neither.
func (w *Watcher) lost(descriptor int32, failed func(err error)) error {
	w.mu.Lock()

	path := w.directories[descriptor]
	isListed := slices.Contains(w.listed, path)

	delete(w.directories, descriptor)
	w.mu.Unlock()

	if !isListed {
		return nil
	}

	return passError(fmt.Errorf("%w: %s was removed, moved or unmounted", ErrGone, path), failed)
}

// passError passes an error to failed, or returns it where that is nil.
func passError(err error, failed func(err error)) error {
	if err == nil || failed == nil {
		return err
	}

	failed(err)

	return nil
}

func (w *Watcher) take(at time.Time, data []byte, notify func(Event), failed func(err error)) error {
	reported := map[Event]bool{}
	report := func(event Event) {
		event.At = at
		if !reported[event] {
			reported[event] = true

			notify(event)
		}
	}

	for len(data) >= unix.SizeofInotifyEvent {
		var (
			descriptor = int32(binary.NativeEndian.Uint32(data))
			mask       = binary.NativeEndian.Uint32(data[4:])
			nameBytes  = binary.NativeEndian.Uint32(data[12:])
			name, _, _ = bytes.Cut(data[unix.SizeofInotifyEvent:][:nameBytes], []byte{0})
		)

		data = data[unix.SizeofInotifyEvent+nameBytes:]

		w.mu.Lock()
		directory, known := w.directories[descriptor]
		w.mu.Unlock()

		path := directory + "/" + string(name)

		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			report(Event{Kind: Lost})
		case !known:
		case mask&directoryMoves != 0:
			report(Event{Kind: Lost, Path: directory})

			if err := w.lost(descriptor, failed); err != nil {
				return err
			}
		case len(name) == 0: // The directory's own attributes.
		case mask&unix.IN_MODIFY != 0:
			report(Event{Kind: Written, Path: path})
		case mask&appearances != 0:
			report(Event{Kind: Appeared, Path: path})
		case mask&moves != 0:
			report(Event{Kind: Changed, Path: path})
		}
	}

	return nil
}
