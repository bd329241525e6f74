package direct

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Access is the access to a volume whose filesystem is mounted in a virtual machine,
// the guest, and not on the host. Its device is attached until it is unstaged, as that of
// raw block is; the mount at the target path only has the assignment for the runtime. From
// its publication on the guest may write to the filesystem at any time, so that the host
// does not read, check, mount or grow it until no guest can have it any more.
type Access struct {
	access.RawDevice

	Assignments *Assignments
	Guard       *Guard
	config      *Config
}

// Publish assigns the volume to the pod's guest.
func (d *Access) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return d.assign(ctx, v, p, target, d.config.Runtimes.Root.Put)
}

// Republish restores what was removed of an assignment, also after a sandbox has taken it.
func (d *Access) Republish(ctx context.Context, v *staged.Volume, p staged.Publication) error {
	mounted, err := d.Targets.IsPublished(v, p)
	if err != nil {
		return err
	}

	if mounted {
		return errors.Join(d.Targets.Republish(ctx, v, p), d.Assignments.Restore(v))
	}

	target, err := d.config.Dirs.Target(p.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	return d.assign(ctx, v, p, target, d.config.Runtimes.Root.Restore)
}

// IsPublished returns true also while a sandbox has the volume after its target path was
// unmounted.
func (d *Access) IsPublished(v *staged.Volume, p staged.Publication) (bool, error) {
	found, err := d.Targets.IsPublished(v, p)
	if found || err != nil {
		return found, err
	}

	if inUse, err := d.IsInUse(v); err != nil || !inUse {
		return false, err
	}

	entry, ok, err := d.config.Runtimes.Root.Get(p.TargetPath)

	return err == nil && ok && entry.Sandbox != "", observe.Unknown(err, v, "assigned at "+p.TargetPath)
}

// Unpublish also removes the assignment, whatever else fails.
func (d *Access) Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if target != nil {
		if err := d.UnmountAllLayers(v, target); err != nil {
			return err
		}
	}

	return errors.Join(d.config.Tuner.RemoveLimits(p.TargetPath), d.config.Runtimes.Root.Remove(p.TargetPath), d.RemoveTarget(p))
}

// Expand grows the device, and then the filesystem: here while no guest can have it, else in
// the guest.
func (d *Access) Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	size, err := d.RawDevice.Expand(ctx, v, path, asked)
	if err != nil || v.IsReadOnly() {
		return size, err
	}

	return size, d.grow(ctx, v, size)
}

// assign publishes a direct volume. It writes the assignment before it mounts the target path:
// the mount makes the volume published.
func (d *Access) assign(ctx context.Context, v *staged.Volume, wanted staged.Publication, target *mount.Target,
	write func(kata.Assignment) error,
) error {
	if _, err := target.MakeDir(access.TargetDirectoryMode); err != nil {
		return err
	}

	if err := d.cancelCheck(ctx, v); err != nil {
		return err
	}

	number, err := d.config.Devices.For(ctx, v, wanted)
	if err != nil {
		return err
	}

	if err := d.LimitNew(ctx, d, v, wanted); err != nil {
		return err
	}

	assignment := d.Assignments.assignment(v, wanted, number)

	plugin, err := assignment.CSIPlugin()
	if err != nil {
		return err
	}

	if err := write(assignment); err != nil {
		return err
	}

	return mountAssignment(v, plugin, target)
}

// checkEndLimit bounds the wait for a check that is cancelled.
const checkEndLimit = 10 * time.Second

// cancelCheck cancels a check that began before the volume was staged. Since then no other can
// begin.
func (d *Access) cancelCheck(ctx context.Context, v *staged.Volume) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkEndLimit,
		errdefs.Errorf(errdefs.ErrUnavailable, "a check of it does not come to its end; see the health of its pool"))
	defer cancel()

	return d.config.Checker.Cancel(ctx, v.VolumeID)
}
