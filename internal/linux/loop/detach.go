package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/holder"
)

// Detach detaches whatever image the number has, and returns when it is gone.
// A number without an image is fine. Where a mount or an open file still holds
// the device, the kernel completes the detach at the last close: Detach waits
// for that until ctx ends and then returns ErrInUse.
//
// Where the number may have changed hands meanwhile, use DetachSame.
func (l *Loops) Detach(ctx context.Context, number int) error {
	return l.detach(ctx, number, nil)
}

// DetachSame is Detach only if the number has the attachment that was observed before. If it has
// another, that one is gone, which is fine. It is recognized by its disk sequence, without its image,
// and before Linux 5.15 by its image, which observed has to have then.
func (l *Loops) DetachSame(ctx context.Context, observed Status) error {
	return l.detach(ctx, observed.Number, &observed)
}

func (l *Loops) detach(ctx context.Context, number int, observed *Status) error {
	sequence, attached, err := l.requestDetach(number, observed)
	if err != nil {
		return numberError(opDetach, number, err)
	}

	if !attached {
		l.numbers.free(number)

		return nil
	}

	return l.AwaitDetached(ctx, number, sequence)
}

// AwaitDetached returns when the attachment of that sequence to the number is gone, without asking its
// image. Error: ErrInUse, when ctx ends.
func (l *Loops) AwaitDetached(ctx context.Context, number int, sequence uint64) error {
	// Polled: the kernel sends a uevent, but only to the network namespaces of
	// the initial user namespace, and sysfs supports no inotify. Unless the device
	// is in use, the first check finds it detached.
	for pause := newBackoff(); l.sysfs.attached(number); {
		now, err := l.sysfs.sequence(number)
		if err != nil {
			return err
		}

		// Another image on the same number means that ours is gone.
		if now != sequence {
			break
		}

		if err := pause.wait(ctx); err != nil {
			users := DescribeUsers(number)

			return numberError(opDetach, number, fmt.Errorf("%w: %s: %w", ErrInUse, users, err))
		}
	}

	l.numbers.free(number)

	return nil
}

// requestDetach asks for the detach and returns which attachment of the number it was. It does not ask the
// image, whose filesystem may be gone.
func (l *Loops) requestDetach(number int, observed *Status) (sequence uint64, attached bool, err error) {
	node, err := l.openAttached(number)
	if node == nil {
		return 0, false, err
	}
	defer node.Close()

	// The open node keeps the attachment.
	if sequence, err = l.sysfs.sequence(number); err != nil {
		return 0, false, err
	}

	if observed != nil {
		if same, err := l.isSame(node, sequence, observed); err != nil || !same {
			return 0, false, err
		}
	}

	err = unix.IoctlSetInt(int(node.Fd()), unix.LOOP_CLR_FD, 0)
	if err != nil && !errors.Is(err, unix.ENXIO) {
		return 0, false, fmt.Errorf("LOOP_CLR_FD: %w", err)
	}

	return sequence, true, nil
}

func (l *Loops) isSame(node *os.File, sequence uint64, observed *Status) (bool, error) {
	if sequence != 0 {
		return sequence == observed.Sequence, nil
	}

	now, attached, err := l.statusOf(node, observed.Number)

	return attached && now.Backing == observed.Backing, err
}

// Remove takes a number without an image, and its node, out of the kernel again: for
// one that was used for a moment and will not be used soon. It takes some 40 ms, and
// so is not done to those of volumes. While a program has the device open, as udev has
// after each change, it waits until ctx ends and then returns ErrInUse.
func (l *Loops) Remove(ctx context.Context, number int) error {
	for pause := newBackoff(); ; {
		switch err := l.nodes.remove(number); {
		case err == nil:
			l.numbers.free(number)

			return l.nodes.removeNode(number)
		case !errors.Is(err, unix.EBUSY):
			return numberError(opRemove, number, err)
		}

		if err := pause.wait(ctx); err != nil {
			return numberError(opRemove, number, fmt.Errorf("%w: %w", ErrInUse, err))
		}
	}
}

// DescribeUsers names, for a message, the processes that keep the device in use.
func DescribeUsers(number int) string {
	return holder.Describe(func() ([]holder.Process, error) { return holder.OfDevice(unix.Mkdev(Major, uint32(number))) })
}
