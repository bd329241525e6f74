package pool

import (
	"context"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// SnapshotPath returns the absolute path of a snapshot's image or directory,
// for messages.
func (p *Pool) SnapshotPath(id string, backing volume.Backing) string {
	return p.ObjectPath(Object{ID: id, Backing: backing, Snapshot: true})
}

// OpenSnapshot opens the image of a snapshot for reading, without following a symlink. Errors:
// ErrMissing.
func (p *Pool) OpenSnapshot(id string) (*os.File, error) {
	return p.open(Object{ID: id, Backing: volume.BackingImage, Snapshot: true})
}

// ListSnapshots calls visit for every snapshot in the pool, in no order, until visit returns an
// error.
func (p *Pool) ListSnapshots(ctx context.Context, visit func(Entry) error) error {
	for suffix, backing := range map[string]volume.Backing{layout.ImageSuffix: volume.BackingImage, "": volume.BackingDirectory} {
		err := listIDs(ctx, p.snapshots, suffix, func(id string) error {
			return visit(Entry{ID: id, Backing: backing})
		})
		if err != nil {
			return fmt.Errorf("list snapshots of pool %q: %w", p.name, err)
		}
	}

	return nil
}
