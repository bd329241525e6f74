package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Assignments are what is assigned to guests on this node.
type Assignments struct {
	config *Config
	guard  *Guard
	raw    access.RawDevice
}

// List lists the assignments on this node, in the order of their target paths.
func (a *Assignments) List(context.Context) ([]kata.AssignedVolume, error) {
	listed := []kata.AssignedVolume{}

	for _, v := range a.config.Volumes.All() {
		if !v.IsDirect() {
			continue
		}

		for _, publication := range v.Publications {
			each, err := a.listed(v, publication)
			if err != nil {
				return nil, fmt.Errorf("list volume %s: %w", v.VolumeID, err)
			}

			listed = append(listed, each)
		}
	}

	slices.SortFunc(listed, func(a, b kata.AssignedVolume) int { return strings.Compare(a.TargetPath, b.TargetPath) })

	return listed, nil
}

func (a *Assignments) listed(v *staged.Volume, publication staged.Publication) (kata.AssignedVolume, error) {
	entry, _, err := a.config.Runtimes.Root.Get(publication.TargetPath)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	number, err := a.raw.DeviceOf(v, publication)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	assignment := a.assignment(v, publication, number)
	each := kata.AssignedVolume{
		VolumeID: v.VolumeID, TargetPath: publication.TargetPath, FSType: assignment.FSType,
		Options: append([]string{}, assignment.Options...), ReadOnly: publication.ReadOnly || v.IsReadOnly(), Sandbox: entry.Sandbox,
	}

	if number == device.None {
		return each, nil
	}

	each.Device = assignment.Device

	status, _, err := a.config.Loops.Status(number)
	each.SizeBytes = status.SizeBytes

	if each.SizeBytes > v.FilledBytes && !v.IsReadOnly() {
		each.PendingBytes = each.SizeBytes
	}

	return each, err
}

// assignment returns what the runtime reads about a publication.
func (a *Assignments) assignment(v *staged.Volume, publication staged.Publication, number int) kata.Assignment {
	options := mount.SplitFlags(publication.Capability.MountFlags)

	if publication.ReadOnly || v.IsReadOnly() {
		options = append(slices.DeleteFunc(options, func(flag string) bool { return flag == "rw" || flag == "ro" }), "ro")
	}

	return kata.Assignment{
		TargetPath: publication.TargetPath, Device: a.config.Runtimes.HostPaths.Host(a.config.Loops.Path(number)),
		FSType: v.FSType(), Options: options, Group: publication.Capability.MountGroup,
	}
}

// mountAssignment mounts a filesystem with the file that the runtime reads at the target path.
func mountAssignment(v *staged.Volume, plugin []byte, target *mount.Target) error {
	tree, err := mount.NewReadOnlyTmpfs(observe.DirectSource(v.VolumeID), map[string][]byte{kata.PluginFile: plugin})
	if err != nil {
		return err
	}
	defer tree.Close()

	return tree.Attach(target)
}

// Restore writes again what was removed of the assignments of a direct volume. It
// revokes those whose device is gone.
func (a *Assignments) Restore(v *staged.Volume) error {
	if !v.IsDirect() {
		return nil
	}

	for _, publication := range v.Publications {
		number, lost, err := a.lostDevice(v, publication)

		switch {
		case err != nil:
		case lost:
			err = a.revoke(v, publication)
		default:
			assignment := a.assignment(v, publication, number)
			if err = errors.Join(a.config.Runtimes.Root.Restore(assignment), a.restoreMount(v, assignment)); err != nil {
				err = fmt.Errorf("restore the assignment of volume %s: %w", v.VolumeID, err)
			}
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// restoreMount mounts the assignment again if its file at the target path was changed, which a
// privileged container can do.
func (a *Assignments) restoreMount(v *staged.Volume, assignment kata.Assignment) error {
	plugin, err := assignment.CSIPlugin()
	if err != nil {
		return err
	}

	target, err := a.config.Dirs.Target(assignment.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	point, mounted, err := target.Mounted()
	if err != nil || !mounted || !observe.IsDirectMountOf(v, point) {
		return err // a probe reports it
	}

	if shown, err := readPlugin(target); point.SuperReadOnly && err == nil && bytes.Equal(shown, plugin) {
		return nil
	}

	a.config.Log.Warn("the assignment at a target path was changed and is restored",
		"volume", v.VolumeID, "target", assignment.TargetPath)

	// It is mounted over the changed one: a driver that is killed between an unmount and a
	// mount would find the volume unpublished. Both are unmounted together.
	return mountAssignment(v, plugin, target)
}

func readPlugin(target *mount.Target) ([]byte, error) {
	const enough = 64 << 10

	root, err := target.OpenDir()
	if err != nil {
		return nil, err
	}
	defer root.Close()

	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d/%s", root.Fd(), kata.PluginFile), unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	return io.ReadAll(io.LimitReader(file, enough))
}

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
