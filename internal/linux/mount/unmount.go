package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/fork"
	"github.com/touchstone-csi/touchstone/internal/linux/holder"
)

// Unmount takes away one layer, the top one, of what is mounted exactly here;
// nothing mounted, or nothing there, is fine. ErrBusy when something still uses
// it: an open file, a working directory, a mount beneath. It is never detached
// lazily: a volume that is still written to must not look free.
func (p *Target) Unmount() error {
	// umount2 has no variant that takes a descriptor.
	path := p.link() + "/" + p.name
	err := retryBusy(busyAttempts, func() error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) })

	switch {
	case errors.Is(err, unix.EBUSY):
		users := holder.Describe(func() ([]holder.Process, error) { return holder.OfMount(p.path) })

		err = fmt.Errorf("%w: %s; a mount beneath it keeps it busy too; end that and call again: %w", ErrBusy, users, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		// These say "not a mount" and "nothing there", but also "a mount that
		// you may not touch" and "no /proc".
		_, mounted, queryErr := p.Mounted()

		switch {
		case queryErr != nil:
			err = fmt.Errorf("%w (%w)", err, queryErr)
		case !mounted:
			return nil
		}
	}

	return p.wrapError("unmount", err)
}

// A child that this process has forked, for a tool that works on another volume,
// holds copies of all descriptors until its exec closes them: a mount that
// is not used is busy for that moment (internal/linux/fork).
const (
	busyAttempts = 7
	// mountAttempts are more, some 300 ms in all: the child may also be about to end, which takes
	// longer than to exec.
	mountAttempts = 14
)

// retryBusy calls attempt again while it returns EBUSY, within that many attempts.
//
//nolint:contextcheck,nolintlint // half a second at most
func retryBusy(attempts int, attempt func() error) error {
	return fork.RetryWhile(context.Background(), unix.EBUSY, attempts, attempt)
}
