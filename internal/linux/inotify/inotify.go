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
	// Lost means that events were lost: any entry may have changed.
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
	// Path is absolute; it is empty if events were lost.
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
	// not block. If it is nil, such a directory ends the watch.
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
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch directories: is fs.inotify.max_user_instances reached? %w", err)
	}

	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()

	w := &watches{fd: fd, notify: notify, failed: of.Failed, directories: map[int32]string{}}

	// Before the list, so that no change is missed.
	var changed <-chan struct{}
	if of.Changed != nil {
		changed = of.Changed()
	}

	if err := w.add(of.List()); err != nil {
		return err
	}

	watching()

	defer errdefs.Wrapf(&err, "watch directories")

	both, ctx := errgroup.WithContext(ctx)

	both.Go(func() error { return w.follow(ctx, of, changed, watching) })
	both.Go(func() error {
		return ctxread.Each(ctx, file, bufferBytes, func(at time.Time, data []byte) error {
			defer ctxread.Pause(ctx, ctxread.BatchPause)

			return w.take(at, data)
		})
	})

	return both.Wait()
}

// watches translates the kernel's events.
type watches struct {
	fd     int
	notify func(Event)
	failed func(err error)

	mu sync.Mutex
	// directories are by watch descriptor; listed are those that are meant to be
	// there.
	directories map[int32]string
	listed      []string
}

// follow watches the directories that are listed whenever they change, until ctx
// ends.
func (w *watches) follow(ctx context.Context, of Directories, changed <-chan struct{}, watching func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed: // Never, where it is nil.
		}

		changed = of.Changed()
		if err := w.add(of.List()); err != nil {
			return err
		}

		watching()
	}
}

// add watches the directories, as they are now.
func (w *watches) add(listed []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.listed = nil

	for _, directory := range listed {
		directory = filepath.Clean(directory)

		descriptor, err := unix.InotifyAddWatch(w.fd, directory, watched)
		if err != nil {
			err = fmt.Errorf("watch the directory %s: %w", directory, err)
			if w.failed == nil {
				return err
			}

			w.failed(err)

			continue
		}

		// Another directory may have been there.
		maps.DeleteFunc(w.directories, func(_ int32, known string) bool { return known == directory })

		w.directories[int32(descriptor)] = directory
		w.listed = append(w.listed, directory)
	}

	return nil
}

// lost returns ErrGone for a watch that the kernel has removed, or passes it to Failed. For a directory that
// is not listed any more it does neither.
func (w *watches) lost(descriptor int32) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	path := w.directories[descriptor]
	delete(w.directories, descriptor)

	if !slices.Contains(w.listed, path) {
		return nil
	}

	err := fmt.Errorf("%w: %s was removed, moved or unmounted", ErrGone, path)
	if w.failed == nil {
		return err
	}

	w.failed(err)

	return nil
}

func (w *watches) take(at time.Time, data []byte) error {
	reported := map[Event]bool{}
	report := func(event Event) {
		event.At = at
		if !reported[event] {
			reported[event] = true

			w.notify(event)
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
			report(Event{Kind: Lost})

			if err := w.lost(descriptor); err != nil {
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
