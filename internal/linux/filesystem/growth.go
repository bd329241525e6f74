package filesystem

import (
	"fmt"
	"io"
)

// CheckGrowth returns ErrGrowLimit if the filesystem of an image or device cannot grow to so many
// bytes, as its superblock says. It returns nil if there is none of the supported filesystems. Error:
// ErrNoSuperblock.
func CheckGrowth(r io.ReaderAt, bytes int64) error {
	name, err := Detect(r)
	if err != nil || name == "" {
		return err
	}

	row, _ := typeByName(name)
	if row.growthLimit == nil {
		return nil
	}

	limit, err := row.growthLimit(r)
	if err != nil {
		return err
	}

	return limit.check(name, bytes)
}

// growthLimit says how large a filesystem can become.
type growthLimit struct {
	// nowBytes is the size that it has, and unitBytes the unit in which it grows.
	nowBytes, unitBytes int64
	maxBytes            int64
	// reason says for people what limits it.
	reason string
}

// fills reports whether a filesystem takes all the whole units of a device.
func (l growthLimit) fills(deviceBytes int64) bool { return deviceBytes-l.nowBytes < l.unitBytes }

func (l growthLimit) check(name string, bytes int64) error {
	if l.fills(bytes) || bytes-l.maxBytes < l.unitBytes {
		return nil
	}

	return fmt.Errorf("%s of %d bytes: %w: it can have %d bytes, not %d: %s; copy its files to a new volume of that size",
		name, l.nowBytes, ErrGrowLimit, l.maxBytes, bytes, l.reason)
}
