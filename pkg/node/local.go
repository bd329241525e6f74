package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// The methods of this file are what a controller in the same process uses
// (controller.LocalNode).

// Serves reports whether nodeID is the ID of this node.
func (s *Service) Serves(nodeID string) bool { return nodeID == s.config.NodeID }

// InUse returns where the volume is published, or else staged. An error means that this is
// unknown.
func (s *Service) InUse(volumeID string) (path string, used bool, err error) {
	use, ok := s.stagedVolumes.Get(volumeID)
	if !ok {
		return "", false, nil
	}

	for _, publication := range use.Publications {
		used, err := s.access.For(use).IsPublished(use, publication)
		if used || err != nil {
			return publication.TargetPath, used, err
		}
	}

	used, err = s.access.For(use).IsInUse(use)

	return use.StagingPath, used, err
}

// CheckSupported returns cgroup.ErrUnsupported if this machine cannot do what wanted says.
func (s *Service) CheckSupported(wanted volume.Mutable) error { return s.tuner.CheckSupported(wanted) }

// ApplyAttributes applies the mutable parameters that the pool has of a volume, if the volume is in
// use on this node. The caller must be in an operation on the volume.
func (s *Service) ApplyAttributes(ctx context.Context, volumeID string) error {
	s.checker.Changed(volumeID)

	use, known := s.stagedVolumes.Get(volumeID)
	if !known {
		return nil
	}

	return s.access.Tune(ctx, use)
}

// refresh is ApplyAttributes as an operation of its own. Occasion makes its key unique: it must not
// join an operation that may have read the attributes already.
func (s *Service) refresh(ctx context.Context, volumeID string, occasion int) error {
	call := rpc.VolumeCall(volumeID, "attributes "+strconv.Itoa(occasion), "refresh", nil)

	_, err := operation.Do(ctx, s.ops, call, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.ApplyAttributes(ctx, volumeID)
	})

	return err
}

// CanFreeze reports whether WithFrozen protects a copy of the volume from all writes on
// this node: the volume is not used here, only read, or mounted from an image.
func (s *Service) CanFreeze(volumeID string) bool {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known || use.IsReadOnly() || access.CanFreeze(use) {
		return true
	}

	_, used, err := s.InUse(volumeID)

	return err == nil && !used
}

// WithFrozen calls within while the filesystems of the volumes are frozen, as far as they
// are on images and mounted for writing on this node. The devices of raw-block and direct
// volumes in use here are synced; other volumes are ignored. See freeze.Freezer.
func (s *Service) WithFrozen(ctx context.Context, volumeIDs []string, within func(ctx context.Context) error) error {
	targets := freeze.Targets{}

	sorted := slices.Clone(volumeIDs)
	slices.Sort(sorted)

	for _, id := range slices.Compact(sorted) {
		use, known := s.stagedVolumes.Get(id)
		if !known {
			continue
		}

		if err := s.access.For(use).AddFreezeTargets(use, &targets); err != nil {
			return errors.Join(fmt.Errorf("freeze volume %s: %w", id, err), targets.Close())
		}
	}

	return s.freezer.WithFrozen(ctx, targets, within)
}

// openRootOf opens the root of a staged volume's filesystem, nil where it is not mounted.
func (s *Service) openRootOf(volumeID string) (*os.File, error) {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known {
		return nil, nil //nolint:nilnil // documented
	}

	root, _, err := s.access.OpenRoot(use)

	return root, err
}
