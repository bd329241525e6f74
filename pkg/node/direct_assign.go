package node

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
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// assign publishes a direct volume. What the runtime waits for is there before
// the target path is mounted, which is what makes it published.
func (s *Service) assign(ctx context.Context, use *staged.Volume, wanted staged.Publication, place *mount.Target,
	tell func(kata.Assignment) error,
) error {
	if _, err := place.MakeDir(targetDirectoryMode); err != nil {
		return err
	}

	if err := s.endCheck(ctx, use); err != nil {
		return err
	}

	number, err := s.deviceFor(ctx, use, wanted)
	if err != nil {
		return err
	}

	if err := s.limitNew(ctx, use, wanted); err != nil {
		return err
	}

	given := s.assignment(use, wanted, number)

	plugin, err := given.CSIPlugin()
	if err == nil {
		err = tell(given)
	}

	if err != nil {
		return err
	}

	return show(use, plugin, place)
}

// republishDirect brings back what somebody has taken away of a publication that
// a sandbox has.
func (s *Service) republishDirect(ctx context.Context, use *staged.Volume, existing staged.Publication) error {
	at := existing.TargetPath

	mounted, err := s.mountedAt(use, at)
	if err == nil && !mounted {
		mounted, err = s.covered(use, at)
	}

	if err != nil {
		return err
	}

	if mounted {
		return errors.Join(s.uncovered(use, existing), s.reassign(use))
	}

	place, err := s.places.Target(at)
	if err != nil {
		return err
	}
	defer place.Close()

	return s.assign(ctx, use, existing, place, s.config.Direct.Root.Restore)
}

// assignment is what the runtime is told.
func (s *Service) assignment(use *staged.Volume, publication staged.Publication, number int) kata.Assignment {
	options := mount.SplitFlags(publication.Capability.MountFlags)

	if publication.ReadOnly || use.IsReadOnly() {
		options = append(slices.DeleteFunc(options, func(flag string) bool { return flag == "rw" || flag == "ro" }), "ro")
	}

	return kata.Assignment{
		TargetPath: publication.TargetPath, Device: s.config.Direct.HostPaths.Host(s.loops.Path(number)),
		FSType: use.FSType(), Options: options, Group: publication.Capability.MountGroup,
	}
}

// show mounts what the runtime reads at the target path.
func show(use *staged.Volume, plugin []byte, place *mount.Target) error {
	tree, err := mount.NewReadOnlyTmpfs(directSource(use.VolumeID), map[string][]byte{kata.PluginFile: plugin})
	if err != nil {
		return err
	}
	defer tree.Close()

	return tree.Attach(place)
}

// reassign has the runtime told again what it may have lost. What it knows is not
// touched.
func (s *Service) reassign(use *staged.Volume) error {
	if !use.IsDirect() {
		return nil
	}

	for _, publication := range use.Publications {
		lost, err := s.deviceLost(use, publication)
		if err != nil {
			return err
		}

		if lost {
			if err := s.revoke(use, publication); err != nil {
				return err
			}

			continue
		}

		number, err := s.numberOf(use, publication)
		if err != nil {
			return err
		}

		given := s.assignment(use, publication, number)
		if err := errors.Join(s.config.Direct.Root.Restore(given), s.reseal(use, given)); err != nil {
			return fmt.Errorf("tell the runtime of volume %s: %w", use.VolumeID, err)
		}
	}

	return nil
}

// reseal shows the assignment anew where somebody has changed what a target path
// shows: a container that may do everything on the machine can.
func (s *Service) reseal(use *staged.Volume, given kata.Assignment) error {
	plugin, err := given.CSIPlugin()
	if err != nil {
		return err
	}

	place, err := s.places.Target(given.TargetPath)
	if err != nil {
		return err
	}
	defer place.Close()

	point, mounted, err := place.Mounted()
	if err != nil || !mounted || !isDirectMount(use, point) {
		return err // the volume's health tells of it
	}

	if shown, err := readPlugin(place); point.SuperReadOnly && err == nil && bytes.Equal(shown, plugin) {
		return nil
	}

	s.config.Log.Warn("what a runtime reads at a target path was changed, and is put right",
		"volume", use.VolumeID, "target", given.TargetPath)

	// Over it, and not in its place: killed between the two, the driver would take
	// the volume for one that is not published. Both are unmounted together.
	return show(use, plugin, place)
}

func readPlugin(place *mount.Target) ([]byte, error) {
	const enough = 64 << 10

	root, err := place.OpenDir()
	if err != nil {
		return nil, err
	}
	defer root.Close()

	fd, err := unix.Openat(int(root.Fd()), kata.PluginFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(place.Path(), kata.PluginFile), err)
	}

	file := os.NewFile(uintptr(fd), kata.PluginFile)
	defer file.Close()

	return io.ReadAll(io.LimitReader(file, enough)) //nolint:wrapcheck // only compared
}

// toldNumber is that of the device which a runtime was told of.
func (s *Service) toldNumber(use *staged.Volume, publication staged.Publication) (int, bool, error) {
	if !use.IsDirect() {
		return none, false, nil
	}

	entry, ok, err := s.toldAt(publication.TargetPath)
	if err != nil || !ok {
		return none, false, err
	}

	number, isLoop := loopNumber(mount.Point{Source: entry.Device})

	return number, isLoop, nil
}

// toldAt returns what the runtime was told about a target path, false for nothing.
func (s *Service) toldAt(targetPath string) (kata.Entry, bool, error) {
	entry, ok, err := s.config.Direct.Root.Get(targetPath)
	if errors.Is(err, kata.ErrInvalidAssignment) {
		return kata.Entry{}, false, nil // nothing was told of a path that it refuses
	}

	return entry, ok, err
}

// taken returns whether a sandbox has the publication, also after its target path
// was unmounted.
func (s *Service) taken(use *staged.Volume, targetPath string) (bool, error) {
	if !use.IsDirect() {
		return false, nil
	}

	_, attached, err := s.devices.attachment(use.VolumeID)
	if err != nil || !attached {
		return false, unknown(err, use, "attached")
	}

	entry, ok, err := s.toldAt(targetPath)

	return err == nil && ok && entry.Sandbox != "", unknown(err, use, "assigned at "+targetPath)
}

// withdraw takes back what the runtime was told of a publication.
func (s *Service) withdraw(use *staged.Volume, targetPath string) error {
	if use == nil || !use.IsDirect() {
		return nil
	}

	err := s.config.Direct.Root.Remove(targetPath)
	if errors.Is(err, kata.ErrInvalidAssignment) {
		return nil // nothing was told of a path that it refuses
	}

	return err
}
