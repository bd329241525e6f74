package access

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Volumes answers by the id of a volume how it is used on this node.
type Volumes struct {
	ways    *Ways
	records *staged.Records[*staged.Volume]
	freezer *freeze.Freezer
}

// NewVolumes returns Volumes for these ways of access.
func NewVolumes(ways *Ways, records *staged.Records[*staged.Volume], freezer *freeze.Freezer) *Volumes {
	return &Volumes{ways, records, freezer}
}

// Staged returns the record of the volume, false where it has none on this node.
func (v *Volumes) Staged(volumeID string) (*staged.Volume, bool) {
	return v.records.Get(volumeID)
}

// InUse returns where the volume is published, or else staged. An error means that this is
// unknown.
func (v *Volumes) InUse(volumeID string) (path string, used bool, err error) {
	found, known := v.records.Get(volumeID)
	if !known {
		return "", false, nil
	}

	return v.ways.InUse(found)
}

// ErrorCount returns how many errors the kernel has counted in the volume's mounted filesystem.
func (v *Volumes) ErrorCount(volumeID string) (uint64, error) {
	found, known := v.records.Get(volumeID)
	if !known {
		return 0, nil
	}

	root, point, err := v.ways.Targets.observer.OpenRoot(found)
	if err != nil || root == nil {
		return 0, err
	}
	defer root.Close()

	number, isLoop := point.LoopDevice()
	if !isLoop {
		return 0, nil
	}

	counted, err := filesystem.ReadErrors(found.FSType(), number, root)

	return counted.Count, err
}

// CanFreeze reports whether WithFrozen protects a copy of the volume from all writes on
// this node: the volume is not used here, only read, or mounted from an image.
func (v *Volumes) CanFreeze(volumeID string) bool {
	found, known := v.records.Get(volumeID)
	if !known || found.IsReadOnly() || found.IsMountedImage() {
		return true
	}

	_, used, err := v.ways.InUse(found)

	return err == nil && !used
}

// IsFrozen reports whether the volume's filesystem is frozen by WithFrozen.
func (v *Volumes) IsFrozen(volumeID string) bool { return v.freezer.IsFrozen(volumeID) }

// WithFrozen calls within while the filesystems of the volumes are frozen, as far as they
// are on images and mounted for writing on this node. The devices of raw-block and direct
// volumes in use here are synced; other volumes are ignored. See freeze.Freezer.
func (v *Volumes) WithFrozen(ctx context.Context, volumeIDs []string, within func(ctx context.Context) error) error {
	targets := freeze.Targets{}

	sorted := slices.Clone(volumeIDs)
	slices.Sort(sorted)

	for _, id := range slices.Compact(sorted) {
		found, known := v.records.Get(id)
		if !known {
			continue
		}

		if err := v.ways.For(found).AddFreezeTargets(found, &targets); err != nil {
			return errors.Join(fmt.Errorf("freeze volume %s: %w", id, err), targets.Close())
		}
	}

	return v.freezer.WithFrozen(ctx, targets, within)
}
