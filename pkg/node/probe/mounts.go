package probe

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// expectedMount is a path at which the volume has to be mounted.
type expectedMount struct {
	path string
	// isTarget means that it is a target path and not the staging path, isPersistent that each start of
	// the driver mounts it.
	isTarget, isPersistent bool
	readOnly               bool
}

// expectedMounts returns the paths at which the volume has to be mounted, the staging path
// first.
func expectedMounts(record *staged.Volume) []expectedMount {
	var expected []expectedMount

	publications := slices.Clone(record.Publications)

	for _, each := range record.Persistent {
		if _, published := record.PublicationAt(each.TargetPath); !published {
			publications = append(publications, each)
		}
	}

	if !record.IsOnlyPersistent() && !record.ExposesRawDevice() && !record.Ephemeral {
		expected = append(expected, expectedMount{path: record.StagingPath, readOnly: record.MountOptions().ReadOnly()})
	}

	for _, publication := range publications {
		expected = append(expected, expectedMount{
			path: publication.TargetPath, isTarget: true, isPersistent: record.IsPersistentAt(publication.TargetPath),
			readOnly: record.IsReadOnly() || publication.ReadOnly || publication.Capability.MountOptions().ReadOnly(),
		})
	}

	return expected
}

// probeMounts finds out whether the volume is mounted at all paths at which it has to be.
func (s *probeState) probeMounts(context.Context) error {
	for _, each := range expectedMounts(s.volume) {
		if err := s.probeMount(each); err != nil {
			return err
		}
	}

	return nil
}

func (s *probeState) probeMount(expected expectedMount) error {
	s.mounts[expected.path] = observedMount{}

	dir, err := s.prober.config.Dirs.Target(expected.path)
	if observe.IsNoMountTarget(err) {
		s.addUnmounted(expected, s.busy.isUnstaged(), s.prober.failures.whyUnmounted(s.view.id, expected))

		return nil
	}

	if err != nil {
		return err
	}
	defer dir.Close()

	point, mounted, err := dir.Mounted()
	if err != nil {
		return err
	}

	if !mounted {
		s.addUnmounted(expected, s.busy.isUnstaged(), s.prober.failures.whyUnmounted(s.view.id, expected))

		return nil
	}

	isVolume, err := s.isVolume(expected.path, &point)
	if err != nil {
		return err
	}

	if !isVolume {
		s.addUnmounted(expected, s.busy.isUnstaged(), "hidden by another mount")

		return nil
	}

	err = s.openRoot(dir, point)
	if errors.Is(err, fs.ErrNotExist) {
		s.addUnmounted(expected, s.busy.isUnstaged(), unmounted) // since Mounted

		return nil
	}

	s.mounts[expected.path] = observedMount{id: point.ID, mountState: mountStateOf(&point)}

	if !s.volume.ExposesRawDevice() && point.ReadOnly && !expected.readOnly && !point.SuperReadOnly {
		s.add(health.ReadOnlyRemount, "its mount was made read-only; stage or publish it again: "+expected.path)
	}

	return err
}

// isVolume reports whether a mount is the volume, and finds the volume's device. A mount
// that was the volume's at the last probe still is, even if its image was renamed.
func (s *probeState) isVolume(path string, point *mount.Point) (bool, error) {
	was := s.last.mounts[path].id == point.ID

	if !s.volume.Parameters.Backing.HasDevice() {
		return was || observe.IsDirectoryOf(s.volume, *point), nil
	}

	if s.volume.IsDirect() {
		return observe.IsDirectMountOf(s.volume, *point), nil
	}

	number, isLoop := point.LoopDevice()
	if !isLoop {
		return false, nil
	}

	if s.volume.Capability.Block {
		// probeRawDevices has found out whether the device still has the image.
		return s.prober.config.Raw.Had(s.volume.VolumeID, number), nil
	}

	if s.attached != nil {
		return s.attached.Number == number, nil
	}

	return s.isImageDevice(number, was)
}

// isImageDevice reports whether the mounted loop device has the volume's image. wasMount
// means that the mount was the volume's at the last probe.
func (s *probeState) isImageDevice(number int, wasMount bool) (bool, error) {
	if last := s.last.attached; wasMount && last != nil && last.Number == number {
		// A mounted device cannot be detached.
		s.attached = &Attachment{Number: number, Sequence: last.Sequence}

		return true, nil
	}

	attachment, ok, err := s.prober.config.Loops.Attachment(number)
	if err != nil || !ok {
		return false, err
	}

	if !wasMount && !s.last.attached.is(number, attachment.Sequence) {
		ok, err = s.prober.config.Observer.HasImage(s.volume, number)
	}

	if ok {
		s.attached = &Attachment{Number: number, Sequence: attachment.Sequence}
	}

	return ok, err
}

// openRoot opens the root of the first mount that can be opened.
func (s *probeState) openRoot(dir *mount.Target, point mount.Point) error {
	if s.volume.ExposesRawDevice() || s.root != nil || s.point.ID != 0 {
		return nil
	}

	leave, ok := s.prober.gate.TryEnter(s.volume.VolumeID)
	if !ok {
		return health.ErrKeep
	}

	s.leaveGate = leave
	root, err := dir.OpenRoot(point)

	switch {
	case errors.Is(err, unix.EIO):
		// An XFS that has shut down fails all calls.
		s.addShutDown()
	case err != nil:
		return err
	}

	s.root, s.point = root, point

	return nil
}
