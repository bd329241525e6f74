package events

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

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

const (
	// fileMoves are events of files in the directory, directoryMoves those of the
	// directory itself.
	fileMoves = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB
	// The kernel adds the last two unasked.
	directoryMoves = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
	watched        = fileMoves | unix.IN_MODIFY | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// inotifyBytes holds more than a thousand events.
	inotifyBytes = 64 << 10
)

type files struct {
	// directories returns those to watch, now.
	directories func() []string
	// changed returns a channel that is closed when they change; nil is never.
	changed func() <-chan struct{}
}

// NewFiles returns a source of health.FileChanged and health.FileWritten for the
// entries of the directories, whose paths are absolute. A loop device's writes to its
// image raise neither, unless LoopWritesTold.
//
// Several pending events of one file are delivered as one. A directory that is
// removed, moved or unmounted ends Run, after health.Lost.
//
// It uses inotify directly because fsnotify does not report that a directory was
// unmounted, after which no events follow.
func NewFiles(directories ...string) health.Source {
	return &files{directories: func() []string { return directories }}
}

// NewFilesOf is NewFiles for a changing set of directories. Those that are no longer
// listed are watched until they are removed, moved or unmounted.
func NewFilesOf(directories func() []string, changed func() <-chan struct{}) health.Source {
	return &files{directories: directories, changed: changed}
}

// LoopWritesTold reports whether the writes of a loop device without direct I/O to its
// own image may raise health.FileWritten: true before Linux 6.15. Some older stable
// kernels have that change too, which cannot be detected.
func LoopWritesTold() bool {
	const changedMajor, changedMinor = 6, 15

	var (
		name         unix.Utsname
		major, minor int
	)

	if unix.Uname(&name) != nil {
		return true
	}

	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		return true
	}

	return major < changedMajor || major == changedMajor && minor < changedMinor
}

func (*files) Name() string { return "files" }

// Supported implements health.Source. Errors: ErrKernel. A process that has all
// the inotify instances that its user may have learns it from Run.
func (*files) Supported() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)

	switch {
	case errors.Is(err, unix.ENOSYS):
		return explained(err, "inotify needs a kernel with CONFIG_INOTIFY_USER")
	case err == nil:
		_ = unix.Close(fd)
	}

	return nil
}

// Run implements health.Source. Errors: ErrGone, or the kernel's.
func (f *files) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch directories: is fs.inotify.max_user_instances reached? %w", err)
	}

	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()

	watches := &fileWatches{fd: fd, notify: notify, directories: map[int32]string{}}

	// Before the list, so that no change is missed.
	var changed <-chan struct{}
	if f.changed != nil {
		changed = f.changed()
	}

	if err := watches.add(f.directories()); err != nil {
		return err
	}

	connected()

	outer := ctx

	ctx, end := context.WithCancelCause(outer)

	var following sync.WaitGroup

	defer following.Wait()
	defer end(nil)

	following.Go(func() { end(f.follow(ctx, changed, watches)) })

	err = read(ctx, file, inotifyBytes, func(at time.Time, data []byte) error {
		defer rest(ctx, pause)

		return watches.take(at, data)
	})
	if err == nil && outer.Err() == nil {
		err = context.Cause(ctx)
	}

	if err != nil {
		return fmt.Errorf("watch directories: %w", err)
	}

	return nil
}

// follow watches the directories that are listed whenever they change, until ctx
// ends.
func (f *files) follow(ctx context.Context, changed <-chan struct{}, watches *fileWatches) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed: // Never, where it is nil.
		}

		changed = f.changed()
		if err := watches.add(f.directories()); err != nil {
			return err
		}
	}
}

// fileWatches translates inotify events.
type fileWatches struct {
	fd     int
	notify func(health.Event)

	mu sync.Mutex
	// directories are by watch descriptor; listed are those that are meant to be
	// there.
	directories map[int32]string
	listed      []string
}

// add watches the directories, as they are now.
func (w *fileWatches) add(listed []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.listed = nil

	for _, directory := range listed {
		directory = filepath.Clean(directory)

		descriptor, err := unix.InotifyAddWatch(w.fd, directory, watched)
		if err != nil {
			return fmt.Errorf("watch the directory %s: %w", directory, err)
		}

		// Another directory may have been there.
		maps.DeleteFunc(w.directories, func(_ int32, known string) bool { return known == directory })

		w.directories[int32(descriptor)] = directory
		w.listed = append(w.listed, directory)
	}

	return nil
}

// directory returns the directory of a watch, false for one that is not watched any
// more.
func (w *fileWatches) directory(descriptor int32) (path string, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	path, known = w.directories[descriptor]

	return path, known
}

// lost returns ErrGone unless the directory is not listed any more.
func (w *fileWatches) lost(descriptor int32) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	path := w.directories[descriptor]
	delete(w.directories, descriptor)

	if !slices.Contains(w.listed, path) {
		return nil
	}

	return fmt.Errorf("%w: %s was removed, moved or unmounted", ErrGone, path)
}

func (w *fileWatches) take(at time.Time, data []byte) error {
	reported := map[health.Event]bool{}
	report := func(event health.Event) {
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
		directory, known := w.directory(descriptor)
		path := directory + "/" + string(name)

		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			report(health.Event{Kind: health.Lost})
		case !known:
		case mask&directoryMoves != 0:
			report(health.Event{Kind: health.Lost})

			if err := w.lost(descriptor); err != nil {
				return err
			}
		case len(name) == 0: // The directory's own attributes.
		case mask&unix.IN_MODIFY != 0:
			report(health.Event{Kind: health.FileWritten, Path: path})
		case mask&fileMoves != 0:
			report(health.Event{Kind: health.FileChanged, Path: path})
		}
	}

	return nil
}
