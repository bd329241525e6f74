package kernelevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

const (
	// fileMoves tell of a file of the directory, directoryMoves that the
	// directory itself is not what it was.
	fileMoves = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB
	// The kernel adds the last two unasked.
	directoryMoves = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
	watched        = fileMoves | unix.IN_MODIFY | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// inotifyBytes has room for a thousand events and more.
	inotifyBytes = 64 << 10
)

type files struct{ directories []string }

// NewFiles returns a source of health.FileChanged and health.FileWritten for what
// lies directly in the directories, whose paths are absolute. What a loop device
// does to its image raises neither, unless LoopWritesTold says so.
//
// Of many events of one file that come together one is told. A directory that is
// removed, moved or unmounted ends Run, after health.Lost.
//
// It is inotify itself and not fsnotify, which keeps to itself that a directory
// was unmounted: nothing would be told from then on.
func NewFiles(directories ...string) health.Source {
	return &files{directories: directories}
}

// LoopWritesTold says whether on this kernel health.FileWritten may come of what a
// loop device without direct I/O writes to its image itself: so it is before
// Linux 6.15. Some stable kernels before that have the change too, and nothing
// shows it.
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

	watches := fileWatches{notify: notify, directories: make(map[int32]string, len(f.directories))}

	for _, directory := range f.directories {
		descriptor, err := unix.InotifyAddWatch(fd, directory, watched)
		if err != nil {
			return fmt.Errorf("watch the directory %s: %w", directory, err)
		}

		watches.directories[int32(descriptor)] = filepath.Clean(directory)
	}

	connected()

	err = read(ctx, file, inotifyBytes, func(at time.Time, data []byte) error {
		defer rest(ctx, pause)

		return watches.take(at, data)
	})
	if err != nil {
		return fmt.Errorf("watch directories: %w", err)
	}

	return nil
}

// fileWatches makes events of what inotify says.
type fileWatches struct {
	notify func(health.Event)
	// directories are by watch descriptor.
	directories map[int32]string
}

func (w *fileWatches) take(at time.Time, data []byte) error {
	told := map[health.Event]bool{}
	tell := func(event health.Event) {
		event.At = at
		if !told[event] {
			told[event] = true

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
		path := w.directories[descriptor] + "/" + string(name)

		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			tell(health.Event{Kind: health.Lost})
		case mask&directoryMoves != 0:
			tell(health.Event{Kind: health.Lost})

			return fmt.Errorf("%w: %s was removed, moved or unmounted", ErrGone, w.directories[descriptor])
		case len(name) == 0: // The directory's own attributes.
		case mask&unix.IN_MODIFY != 0:
			tell(health.Event{Kind: health.FileWritten, Path: path})
		case mask&fileMoves != 0:
			tell(health.Event{Kind: health.FileChanged, Path: path})
		}
	}

	return nil
}
