package direct

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// GuestUsage asks the guest of a published direct volume for the usage of its filesystem. The
// guest's answer is not trusted: it may be more than the device has.
func (a *Assignments) GuestUsage(ctx context.Context, v *staged.Volume, deviceBytes int64) (mount.Usage, error) {
	entry, err := a.assignmentOf(v)
	if err != nil {
		return mount.Usage{}, err
	}

	usage, err := a.config.Runtimes.Guest.Stats(ctx, entry)
	if err == nil && usage.Bytes.Total > deviceBytes {
		err = fmt.Errorf("%w: the guest reports a filesystem of %d bytes on a device of %d",
			kata.ErrNoAnswer, usage.Bytes.Total, deviceBytes)
	}

	if err != nil {
		a.config.Log.Debug("a guest gave no statistics", "volume", v.VolumeID, "error", err)
	}

	return usage, err
}

// assignmentOf returns the assignment of the volume's one publication.
func (a *Assignments) assignmentOf(v *staged.Volume) (kata.Entry, error) {
	publication := v.Publications[0]

	entry, ok, err := a.config.Runtimes.Root.Get(publication.TargetPath)
	if err != nil || ok {
		return entry, err
	}

	return entry, fmt.Errorf("%w: the assignment of %s is gone; publish it there again",
		kata.ErrNoSandbox, publication.TargetPath)
}
