package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// directVolume is the access to a volume whose filesystem is mounted in a virtual machine,
// the guest, and not on the host. Its device is attached until it is unstaged, as that of
// raw block is; the mount at the target path only has the assignment for the runtime. From
// its publication on the guest may write to the filesystem at any time, so that the host
// does not read, check, mount or grow it until no guest can have it any more.
type directVolume struct{ rawDevice }

// Publish assigns the volume to the pod's guest.
func (d directVolume) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return d.assign(ctx, v, p, target, d.config.Direct.Root.Put)
}

// Republish restores what was removed of an assignment, also after a sandbox has taken it.
func (d directVolume) Republish(ctx context.Context, v *staged.Volume, p staged.Publication) error {
	mounted, err := d.bound.IsPublished(v, p)
	if err != nil {
		return err
	}

	if mounted {
		return errors.Join(d.bound.Republish(ctx, v, p), d.RestoreAssignments(v))
	}

	target, err := d.config.Dirs.Target(p.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	return d.assign(ctx, v, p, target, d.config.Direct.Root.Restore)
}

// IsPublished returns true also while a sandbox has the volume after its target path was
// unmounted.
func (d directVolume) IsPublished(v *staged.Volume, p staged.Publication) (bool, error) {
	found, err := d.bound.IsPublished(v, p)
	if found || err != nil {
		return found, err
	}

	if inUse, err := d.IsInUse(v); err != nil || !inUse {
		return false, err
	}

	entry, ok, err := d.config.Direct.Root.Get(p.TargetPath)

	return err == nil && ok && entry.Sandbox != "", unknown(err, v, "assigned at "+p.TargetPath)
}

// Unpublish also removes the assignment, whatever else fails.
func (d directVolume) Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error {
	if target != nil {
		if err := d.UnmountAllLayers(v, target); err != nil {
			return err
		}
	}

	return errors.Join(d.config.Tuner.RemoveLimits(p.TargetPath), d.config.Direct.Root.Remove(p.TargetPath), d.removeTarget(p))
}

// Expand grows the device, and then the filesystem: here while no guest can have it, else in
// the guest.
func (d directVolume) Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error) {
	size, err := d.rawDevice.Expand(ctx, v, path, asked)
	if err != nil || v.IsReadOnly() {
		return size, err
	}

	return size, d.grow(ctx, v, size)
}

// DirectVolumes lists the assignments on this node, in the order of their target paths.
func (p *Provider) DirectVolumes(context.Context) ([]kata.AssignedVolume, error) {
	listed := []kata.AssignedVolume{}

	for _, v := range p.config.Volumes.All() {
		if !v.IsDirect() {
			continue
		}

		for _, publication := range v.Publications {
			each, err := p.listed(v, publication)
			if err != nil {
				return nil, fmt.Errorf("list volume %s: %w", v.VolumeID, err)
			}

			listed = append(listed, each)
		}
	}

	slices.SortFunc(listed, func(a, b kata.AssignedVolume) int { return strings.Compare(a.TargetPath, b.TargetPath) })

	return listed, nil
}

func (p *Provider) listed(v *staged.Volume, publication staged.Publication) (kata.AssignedVolume, error) {
	entry, _, err := p.config.Direct.Root.Get(publication.TargetPath)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	number, err := p.For(v).DeviceOf(v, publication)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	assignment := p.assignment(v, publication, number)
	each := kata.AssignedVolume{
		VolumeID: v.VolumeID, TargetPath: publication.TargetPath, FSType: assignment.FSType,
		Options: append([]string{}, assignment.Options...), ReadOnly: publication.ReadOnly || v.IsReadOnly(), Sandbox: entry.Sandbox,
	}

	if number == NoDevice {
		return each, nil
	}

	each.Device = assignment.Device

	status, _, err := p.config.Loops.Status(number)
	each.SizeBytes = status.SizeBytes

	if each.SizeBytes > v.FilledBytes && !v.IsReadOnly() {
		each.PendingBytes = each.SizeBytes
	}

	return each, err
}
