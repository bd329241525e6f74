package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// assign publishes a direct volume. It writes the assignment before it mounts the target path:
// the mount makes the volume published.
func (d directVolume) assign(ctx context.Context, v *staged.Volume, wanted staged.Publication, target *mount.Target,
	write func(kata.Assignment) error,
) error {
	if _, err := target.MakeDir(TargetDirectoryMode); err != nil {
		return err
	}

	if err := d.cancelCheck(ctx, v); err != nil {
		return err
	}

	number, err := d.deviceFor(ctx, v, wanted)
	if err != nil {
		return err
	}

	if err := d.limitNew(ctx, v, wanted); err != nil {
		return err
	}

	assignment := d.assignment(v, wanted, number)

	plugin, err := assignment.CSIPlugin()
	if err != nil {
		return err
	}

	if err := write(assignment); err != nil {
		return err
	}

	return mountAssignment(v, plugin, target)
}

// assignment returns what the runtime reads about a publication.
func (p *Provider) assignment(v *staged.Volume, publication staged.Publication, number int) kata.Assignment {
	options := mount.SplitFlags(publication.Capability.MountFlags)

	if publication.ReadOnly || v.IsReadOnly() {
		options = append(slices.DeleteFunc(options, func(flag string) bool { return flag == "rw" || flag == "ro" }), "ro")
	}

	return kata.Assignment{
		TargetPath: publication.TargetPath, Device: p.config.Direct.HostPaths.Host(p.config.Loops.Path(number)),
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

// RestoreAssignments writes again what was removed of the assignments of a direct volume. It
// revokes those whose device is gone.
func (p *Provider) RestoreAssignments(v *staged.Volume) error {
	if !v.IsDirect() {
		return nil
	}

	for _, publication := range v.Publications {
		number, lost, err := p.lostDevice(v, publication)

		switch {
		case err != nil:
		case lost:
			err = p.revoke(v, publication)
		default:
			assignment := p.assignment(v, publication, number)
			if err = errors.Join(p.config.Direct.Root.Restore(assignment), p.restoreMount(v, assignment)); err != nil {
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
func (p *Provider) restoreMount(v *staged.Volume, assignment kata.Assignment) error {
	plugin, err := assignment.CSIPlugin()
	if err != nil {
		return err
	}

	target, err := p.config.Dirs.Target(assignment.TargetPath)
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

	p.config.Log.Warn("the assignment at a target path was changed and is restored",
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

	fd, err := unix.Openat(int(root.Fd()), kata.PluginFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(target.Path(), kata.PluginFile), err)
	}

	file := os.NewFile(uintptr(fd), kata.PluginFile)
	defer file.Close()

	return io.ReadAll(io.LimitReader(file, enough))
}

// assignedNumber returns the number of the device in the assignment, false for none.
func (p *Provider) assignedNumber(v *staged.Volume, publication staged.Publication) (int, bool, error) {
	if !v.IsDirect() {
		return NoDevice, false, nil
	}

	entry, ok, err := p.config.Direct.Root.Get(publication.TargetPath)
	if err != nil || !ok {
		return NoDevice, false, err
	}

	number, isLoop := mount.Point{Source: entry.Device}.LoopDevice()

	return number, isLoop, nil
}
