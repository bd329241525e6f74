package health

import (
	"context"
	"time"
)

// Kind is what an Event tells of.
type Kind int

// The kinds of events.
const (
	// Lost means that events were lost: everything has to be looked at.
	Lost Kind = iota + 1
	// IOError is a request that a block device did not complete: Device, Sector,
	// Write, Errno.
	IOError
	// FilesystemError is an error that a filesystem has reported: Filesystem,
	// Errno.
	FilesystemError
	// MountsChanged means that something was mounted, unmounted or remounted
	// somewhere.
	MountsChanged
	// FileChanged means that the file at Path was removed, moved, put there, or
	// that its attributes (its links among them) have changed.
	FileChanged
	// FileWritten means that the file at Path was written or truncated.
	FileWritten
	// DeviceChanged is a block device that was attached, detached or resized:
	// Device.
	DeviceChanged
)

func (k Kind) String() string {
	names := []string{"unknown", "lost", "io-error", "filesystem-error", "mounts-changed", "file-changed", "file-written", "device-changed"}
	if int(k) < 0 || int(k) >= len(names) {
		return names[0]
	}

	return names[k]
}

// Event says that something has happened, and about what. What is the matter is
// for the probe to say.
type Event struct {
	Kind Kind
	// At is when the source learnt of it, before it did anything else.
	At time.Time
	// Device is a dev_t as unix.Mkdev makes it.
	Device uint64
	// Filesystem is the fsid that statfs tells.
	Filesystem [2]int32
	// Path is absolute.
	Path string
	// Sector is in units of 512 bytes.
	Sector int64
	Write  bool
	// Errno is the kernel's, 0 where it tells none.
	Errno int
}

// Source tells of events.
type Source interface {
	// Name is the source's in metrics and in the log: "block-errors".
	Name() string
	// Supported returns nil, or why this kernel or this process can't have the
	// source at all. It is asked once, at the start.
	Supported() error
	// Run connects, calls connected, and calls notify for each event until ctx
	// ends (then it returns nil) or the source fails. It may be called again.
	// notify does not block for long.
	Run(ctx context.Context, connected func(), notify func(Event)) error
}
