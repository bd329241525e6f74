package loop

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

const (
	// discardLimit is the attribute that makes a queue refuse discards with "0".
	discardLimit = "queue/discard_max_bytes"
	noDiscards   = "0"
)

// refuseDiscards makes an attached device answer discards (BLKDISCARD, FITRIM, a
// mount with "discard") with EOPNOTSUPP. The limit belongs to the number and
// outlives the attachment; allowDiscards takes it back.
func (a attributes) refuseDiscards(number int) error {
	if now, err := a.read(number, discardLimit); err == nil && now == noDiscards {
		return nil
	}

	if err := sysfs.Write(filepath.Join(a.root, "block", Name(number), discardLimit), noDiscards); err != nil {
		return fmt.Errorf("set the discard limit (is %s mounted read-only?): %w", a.root, err)
	}

	return nil
}

// allowDiscards prepares a number whose last image was attached with NoDiscard.
// The kernel takes no other limit than 0 again, since a queue without discards has
// no granularity of them; so the device is removed, and is made again when it is
// opened. Error: errUnusable while something else has it open.
func (l *Loops) allowDiscards(number int) error {
	now, err := l.sysfs.read(number, discardLimit)
	if err != nil || now != noDiscards {
		return nil //nolint:nilerr // the device is not there yet, or has no such limit
	}

	if most, err := l.sysfs.read(number, "queue/discard_max_hw_bytes"); err != nil || most == noDiscards {
		return nil //nolint:nilerr // no image that was attached to it could be discarded
	}

	err = l.nodes.remove(number)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("%w: %w", errUnusable, err)
	}

	return err
}
