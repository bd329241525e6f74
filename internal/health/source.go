package health

import (
	"context"
	"time"
)

// Kind is the kind of an Event.
type Kind int

// The kinds of events.
const (
	// Lost means that events were lost: all subjects must be probed.
	Lost Kind = iota + 1
	// IOError is a failed request of a block device: Device, Sector, Write, Errno.
	IOError
	// FilesystemError is an error that a filesystem has reported: Filesystem,
	// Errno.
	FilesystemError
	// FilesystemShutdown is the end of all I/O of a mounted filesystem: Device.
	FilesystemShutdown
	// MountsChanged means that the mount table has changed.
	MountsChanged
	// FileChanged means that the file at Path was removed, moved or created, or that
	// its attributes (including its link count) have changed.
	FileChanged
	// FileWritten means that the file at Path was written or truncated.
	FileWritten
	// DeviceChanged is a block device that was attached, detached or resized:
	// Device.
	DeviceChanged
)

func (k Kind) String() string {
	names := []string{
		"unknown", "lost", "io-error", "filesystem-error", "filesystem-shutdown", "mounts-changed",
		"file-changed", "file-written", "device-changed",
	}
	if int(k) < 0 || int(k) >= len(names) {
		return names[0]
	}

	return names[k]
}

// Event says what has changed. Its effect on a subject's condition is decided by a
// probe.
type Event struct {
	Kind Kind
	// At is when the source received it.
	At time.Time
	// Device is a dev_t as unix.Mkdev makes it.
	Device uint64
	// Filesystem is the fsid of statfs.
	Filesystem [2]int32
	// Path is absolute.
	Path string
	// Sector is in units of 512 bytes.
	Sector int64
	Write  bool
	// Errno is the kernel's, 0 if unknown.
	Errno int
}

// Source delivers events.
type Source interface {
	// Name is the source's in metrics and in the log: "block-errors".
	Name() string
	// Supported returns nil, or why this kernel or process does not support the
	// source. It is called once, at the start.
	Supported() error
	// Run connects, calls connected, and calls notify for each event until ctx
	// ends (then it returns nil) or the source fails. It may be called again.
	// notify does not block for long.
	Run(ctx context.Context, connected func(), notify func(Event)) error
}
