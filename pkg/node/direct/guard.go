package direct

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Guard keeps the host out of the filesystems of volumes that a guest may have.
type Guard struct{ config *Config }

// CheckNoGuest returns FAILED_PRECONDITION where a guest may have the volume: it is published,
// also without a record, or its device is assigned.
func (g *Guard) CheckNoGuest(v *staged.Volume) error {
	points, err := mount.List()
	if err != nil {
		return err
	}

	if at := slices.IndexFunc(points, func(point mount.Point) bool { return observe.IsDirectMountOf(v, point) }); at >= 0 {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"it is assigned to a virtual machine at %s; unpublish it there first", points[at].Path)
	}

	assigned, err := g.config.Runtimes.Root.List()
	if err != nil {
		return err
	}

	return g.checkNotAmong(assigned, v)
}

// CheckNotAssigned is CheckNoGuest for a volume that is not a direct one. An unsafe directory of
// the runtime does not keep other volumes from being used.
func (g *Guard) CheckNotAssigned(v *staged.Volume) error {
	if g.lockImage(v, flock.TryLock) == nil {
		return nil // not attached anywhere: no need to read all assignments
	}

	assigned, err := g.config.Runtimes.Root.List()
	if errors.Is(err, kata.ErrUnsafeRoot) {
		g.config.Log.Debug("the assignments to virtual machines are unknown", "volume", v.VolumeID, "error", err)

		return nil
	}

	if err != nil {
		return observe.Unknown(err, v, "assigned to a virtual machine")
	}

	return g.checkNotAmong(assigned, v)
}

func (g *Guard) checkNotAmong(assigned []kata.Entry, v *staged.Volume) error {
	for _, each := range assigned {
		assigned, err := g.isDeviceOf(v, each.Device)
		if err != nil {
			return err
		}

		if assigned {
			return errdefs.Errorf(errdefs.ErrFailedPrecondition,
				"its device %s is assigned to a virtual machine (sandbox %q) at %s; unpublish it there first",
				each.Device, each.Sandbox, each.TargetPath)
		}
	}

	return nil
}

// isDeviceOf reports whether a device, named by its path on the host, has the volume's image.
func (g *Guard) isDeviceOf(v *staged.Volume, device string) (bool, error) {
	number, isLoop := mount.Point{Source: device}.LoopDevice()
	if !isLoop {
		return false, nil
	}

	found, err := g.config.Observer.HasImage(v, number)
	if errors.Is(err, loop.ErrBackingUnresponsive) {
		// The image has another name: those of other programs are ignored (decision 0025).
		return false, nil
	}

	return found, err
}

// checkNotAttached returns FAILED_PRECONDITION for an image that is attached: a device that a
// guest had open at its detach is detached with the guest, and until then the image is not
// read.
func (g *Guard) checkNotAttached(v *staged.Volume) error {
	// It waits shortly for a program that is about to unlock the image.
	err := g.lockImage(v, flock.Lock)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"%w: a virtual machine or a program has its device open still, or another node has it; that has to end first", loop.ErrImageLocked)
	}

	return err
}

// lockImage locks the image exclusively and unlocks it at once. An attached image is locked.
func (g *Guard) lockImage(v *staged.Volume, lock func(image *os.File, how int) error) error {
	image, err := g.config.Pools.OpenImage(v, os.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()

	if err := lock(image, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the image: %w", err)
	}

	return nil
}
