package events

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
)

type files struct{ watched inotify.Directories }

// NewFiles returns a source of health.FileChanged and health.FileWritten for the
// entries of the directories, whose paths are absolute. A loop device's writes to its
// image raise neither, unless LoopWritesReported.
//
// Several pending events of one file are delivered as one or two. A directory that is
// removed, moved or unmounted ends Run, after health.Lost.
func NewFiles(directories ...string) health.Source {
	return &files{watched: inotify.Fixed(directories...)}
}

// NewFilesOf is NewFiles for a changing set of directories. Those that are no longer
// listed are watched until they are removed, moved or unmounted.
func NewFilesOf(directories func() []string, changed func() <-chan struct{}) health.Source {
	return &files{watched: inotify.Directories{List: directories, Changed: changed}}
}

// LoopWritesReported reports whether the writes of a loop device without direct I/O to its
// own image may raise health.FileWritten: true before Linux 6.15. Some older stable
// kernels have that change too, which cannot be detected.
func LoopWritesReported() bool {
	var name unix.Utsname

	return unix.Uname(&name) != nil || loopWritesReported(unix.ByteSliceToString(name.Release[:]))
}

// loopWritesReported decides it by the kernel's release. It is true for one that cannot be parsed.
func loopWritesReported(release string) bool {
	const changedMajor, changedMinor = 6, 15

	var major, minor int

	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)

	return err != nil || major < changedMajor || major == changedMajor && minor < changedMinor
}

func (*files) Name() string { return "files" }

// Supported implements health.Source. Errors: ErrKernel.
func (*files) Supported() error {
	if err := inotify.Supported(); err != nil {
		return fmt.Errorf("%w: %w", ErrKernel, err)
	}

	return nil
}

// Run implements health.Source. Errors: ErrGone, or the kernel's.
func (f *files) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	err := inotify.Watch(ctx, f.watched, sync.OnceFunc(connected), func(event inotify.Event) {
		notify(health.Event{Kind: fileEvents[event.Kind], Path: event.Path, At: event.At})
	})
	if errors.Is(err, inotify.ErrGone) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}

	return err
}

var fileEvents = map[inotify.Kind]health.Kind{
	inotify.Lost: health.Lost, inotify.Appeared: health.FileChanged, inotify.Changed: health.FileChanged,
	inotify.Written: health.FileWritten,
}
