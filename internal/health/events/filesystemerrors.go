package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
)

const (
	// fanotifyBytes holds some fifty events.
	fanotifyBytes = 4096
	noDescriptor  = -1
)

// FilesystemErrors is a source of health.FilesystemError for marked filesystems. It is
// safe for concurrent use.
//
// The kernel merges unread errors of a filesystem into one event with the first errno,
// and identifies filesystems by fsid: clones with the same UUID share one. Up to Linux
// 6.18 only ext4 reports errors.
type FilesystemErrors struct {
	mu sync.Mutex
	// group is the fanotify group's descriptor while the source is connected.
	group int
}

// NewFilesystemErrors returns the source without any mark.
func NewFilesystemErrors() *FilesystemErrors { return &FilesystemErrors{group: noDescriptor} }

// Name implements health.Source.
func (*FilesystemErrors) Name() string { return "filesystem-errors" }

// Supported implements health.Source. Errors: ErrKernel, ErrPermission.
func (*FilesystemErrors) Supported() error {
	group, err := newGroup()
	if err != nil {
		return err
	}

	defer func() { _ = unix.Close(group) }()

	// This marks no file: a kernel that supports the event fails because of the
	// descriptor, any other earlier.
	if err := mark(group, noDescriptor); !errors.Is(err, unix.EBADF) {
		return explained(err, "errors of filesystems need Linux 5.16")
	}

	return nil
}

// Mark subscribes to the errors of the filesystem of root, an open directory. The mark
// keeps neither the filesystem mounted nor its device attached, and ends with the last
// unmount or with Run: mark again at each probe of a volume. Marking again costs some
// microseconds and changes nothing.
//
// Errors: ErrNotConnected while Run has not called connected; ErrPermission;
// ErrKernel for a filesystem that cannot be marked.
func (f *FilesystemErrors) Mark(root *os.File) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.group == noDescriptor {
		return fmt.Errorf("mark the filesystem at %s: %w", root.Name(), ErrNotConnected)
	}

	err := mark(f.group, int(root.Fd()))
	runtime.KeepAlive(root)

	if err != nil {
		return fmt.Errorf("mark the filesystem at %s: %w", root.Name(), explained(err, "a filesystem that reports errors"))
	}

	return nil
}

// Run implements health.Source.
func (f *FilesystemErrors) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	group, err := newGroup()
	if err != nil {
		return err
	}

	file := os.NewFile(uintptr(group), "fanotify")
	defer file.Close()

	f.setGroup(group)
	// Before the descriptor is closed and its number reused.
	defer f.setGroup(noDescriptor)

	connected()

	err = ctxread.Each(ctx, file, fanotifyBytes, func(at time.Time, data []byte) error {
		defer ctxread.Pause(ctx, ctxread.BatchPause)

		return takeFilesystemErrors(at, data, notify)
	})
	if err != nil {
		return fmt.Errorf("read the errors of filesystems: %w", err)
	}

	return nil
}

func (f *FilesystemErrors) setGroup(group int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.group = group
}

func newGroup() (int, error) {
	const flags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_UNLIMITED_MARKS | unix.FAN_NONBLOCK | unix.FAN_CLOEXEC

	group, err := unix.FanotifyInit(flags, unix.O_RDONLY|unix.O_CLOEXEC)

	switch {
	case errors.Is(err, unix.EMFILE):
		return 0, fmt.Errorf("fanotify: are there fs.fanotify.max_user_groups of them? %w", err)
	case err != nil:
		return 0, explained(err, "errors of filesystems need CAP_SYS_ADMIN and a kernel with CONFIG_FANOTIFY")
	}

	return group, nil
}

func mark(group, root int) error {
	return unix.FanotifyMark(group, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_FS_ERROR, root, "")
}

// takeFilesystemErrors parses the result of a read of fanotify: struct
// fanotify_event_metadata, each followed by the structs fanotify_event_info_fid and
// fanotify_event_info_error in any order.
func takeFilesystemErrors(at time.Time, data []byte, notify func(health.Event)) error {
	for len(data) >= unix.FAN_EVENT_METADATA_LEN {
		var (
			length   = binary.NativeEndian.Uint32(data)
			version  = data[4]
			behind   = binary.NativeEndian.Uint16(data[6:])
			contents = binary.NativeEndian.Uint64(data[8:])
		)

		if version != unix.FANOTIFY_METADATA_VERSION || int(length) > len(data) || uint32(behind) > length {
			return fmt.Errorf("%w: fanotify events have version %d, supported is %d",
				ErrKernel, version, unix.FANOTIFY_METADATA_VERSION)
		}

		switch {
		case contents&unix.FAN_Q_OVERFLOW != 0:
			notify(health.Event{Kind: health.Lost, At: at})
		case contents&unix.FAN_FS_ERROR != 0:
			notify(filesystemError(at, data[behind:length]))
		}

		data = data[length:]
	}

	return nil
}

func filesystemError(at time.Time, records []byte) health.Event {
	const header, whole = 4, 12

	event := health.Event{Kind: health.FilesystemError, At: at}

	for len(records) >= whole {
		kind, length := records[0], int(binary.NativeEndian.Uint16(records[2:]))
		if length < header || length > len(records) {
			break
		}

		first := int32(binary.NativeEndian.Uint32(records[header:]))
		second := int32(binary.NativeEndian.Uint32(records[header+4:]))

		switch kind {
		case unix.FAN_EVENT_INFO_TYPE_FID:
			event.Filesystem = [2]int32{first, second}
		case unix.FAN_EVENT_INFO_TYPE_ERROR:
			event.Errno = int(first)
		}

		records = records[length:]
	}

	return event
}
