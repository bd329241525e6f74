package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// CanFreeze reports whether WithFrozen protects a copy of the volume from all writes on
// this node: the volume is not used here, only read, or mounted from an image.
func (s *Service) CanFreeze(volumeID string) bool {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known || use.IsReadOnly() || use.IsImage() && !use.ExposesRawDevice() {
		return true
	}

	_, used, err := s.InUse(volumeID)

	return err == nil && !used
}

// WithFrozen calls within while the filesystems of the volumes are frozen, as far as they
// are on images and mounted for writing on this node. The devices of raw-block and direct
// volumes in use here are synced; other volumes are ignored. See freeze.Freezer.
func (s *Service) WithFrozen(ctx context.Context, volumeIDs []string, within func(ctx context.Context) error) error {
	targets, err := s.freezeTargets(volumeIDs)
	if err != nil {
		return errors.Join(err, targets.Close())
	}

	return s.freezer.WithFrozen(ctx, targets, within)
}

// freezeTargets returns what is to be frozen and synced of the volumes, also with an error.
func (s *Service) freezeTargets(volumeIDs []string) (freeze.Targets, error) {
	targets := freeze.Targets{}

	sorted := slices.Clone(volumeIDs)
	slices.Sort(sorted)

	for _, id := range slices.Compact(sorted) {
		use, known := s.stagedVolumes.Get(id)
		if !known || !use.IsImage() || use.IsReadOnly() {
			continue
		}

		if use.ExposesRawDevice() {
			numbers, err := s.numbers(use)
			if err != nil {
				return targets, fmt.Errorf("freeze volume %s: %w", id, err)
			}

			targets.Devices = append(targets.Devices, numbers...)

			continue
		}

		root, err := s.openWritable(use)
		if err != nil {
			return targets, fmt.Errorf("freeze volume %s: %w", id, err)
		}

		if root != nil {
			targets.Filesystems = append(targets.Filesystems, freeze.Filesystem{VolumeID: id, FSType: use.FSType(), Root: root})
		}
	}

	return targets, nil
}

// openRootOf opens the root of a staged volume's filesystem, nil where it is not mounted.
func (s *Service) openRootOf(volumeID string) (*os.File, error) {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known {
		return nil, nil //nolint:nilnil // documented
	}

	root, _, err := s.openRoot(use)

	return root, err
}

// openWritable opens the root of the volume's filesystem, nil unless it is
// mounted and may be written.
func (s *Service) openWritable(use *staged.Volume) (*os.File, error) {
	root, point, err := s.openRoot(use)
	if errors.Is(err, unix.EIO) {
		// An XFS that has shut down answers nothing else.
		return nil, rpc.Errorf(codes.FailedPrecondition,
			"its %s has stopped working; see the kernel's log, unstage the volume and stage it again: %w", use.FSType(), err)
	}

	if err != nil || root == nil {
		return nil, err
	}

	err = s.checkHealth(use, point)
	if err == nil && !point.SuperReadOnly {
		return root, nil
	}

	return nil, errors.Join(err, root.Close())
}

// openRoot opens the root of the volume's filesystem wherever it is mounted, nil
// where it is not.
func (s *Service) openRoot(use *staged.Volume) (*os.File, mount.Point, error) {
	root, point, err := s.openMounted(use, use.StagingPath)

	for _, publication := range use.Publications {
		if root != nil || err != nil {
			break
		}

		root, point, err = s.openMounted(use, publication.TargetPath)
	}

	return root, point, err
}

// openMounted opens what is mounted at a path, nil unless it is the volume.
func (s *Service) openMounted(use *staged.Volume, at string) (*os.File, mount.Point, error) {
	place, err := s.places.Target(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, mount.Point{}, nil
	}

	if err != nil {
		return nil, mount.Point{}, err
	}
	defer place.Close()

	// First without touching it: what else is mounted there may hang.
	point, mounted, err := place.Mounted()
	if err != nil || !mounted {
		return nil, mount.Point{}, err
	}

	if ours, err := s.ours(use, point); err != nil || !ours {
		return nil, mount.Point{}, err
	}

	root, point, err := place.OpenMount()
	if err != nil {
		return nil, mount.Point{}, err
	}

	if ours, err := s.ours(use, point); err != nil || !ours {
		return nil, mount.Point{}, errors.Join(err, root.Close())
	}

	return root, point, nil
}

// checkHealth returns FAILED_PRECONDITION of a filesystem that has given up: a
// copy would be of what happens to be on its disk.
func (s *Service) checkHealth(use *staged.Volume, point mount.Point) error {
	options, err := mount.ParseFlags(use.Capability.MountFlags)
	if err != nil {
		return err
	}

	sick := point.HasSuperOption("emergency_ro") || point.HasSuperOption("shutdown") ||
		point.SuperReadOnly && !options.ReadOnly()
	if !sick {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition,
		"its %s at %s was mounted for writing and has stopped writing (%v); see the kernel's log, unstage the volume and stage it again",
		use.FSType(), point.Path, point.SuperOptions)
}
