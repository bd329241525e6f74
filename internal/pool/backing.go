package pool

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// Backing is the volumes of a pool with one backing.
type Backing interface {
	// Create makes what stores the volume, or completes it. A thick image has all of its blocks when Create
	// returns. The name of any other is durable after Sync. Errors: ErrNoSpace.
	Create(id string, size int64, thick bool) error
	// Grow grows the volume, durably. It never shrinks one. Errors: ErrMissing, ErrTruncated, ErrNoSpace.
	Grow(id string, growth Growth) error
	// Sync makes the name and the size of the volume durable. Errors: ErrMissing.
	Sync(id string) error
	// Capacity returns the size of an image, or the size limit of a directory, and false for one without a
	// limit. Errors: ErrMissing.
	Capacity(id string) (bytes int64, limited bool, err error)
	// EnsureSize returns ErrTruncated for an image with fewer bytes. It has the limit of a directory count
	// all files in it, and sets the limit again that an interruption has left unset, if the volume is
	// limited. Errors: ErrMissing.
	EnsureSize(id string, bytes int64, limited bool) error
	// SizeLimit returns what limits the directory of a new volume; it is empty for an image.
	SizeLimit() volume.SizeLimit
	// CheckGrowth returns filesystem.ErrGrowLimit if the object's own filesystem, if it has one, cannot
	// become as large. Errors: ErrMissing.
	CheckGrowth(object Object, bytes int64) error
	// CheckDetached returns ErrInUse if the volume is attached, here or on another node: also if nothing but
	// a mount in another mount namespace keeps its device. A missing volume is no error.
	CheckDetached(ctx context.Context, id string) error
	// MountsIn returns what is mounted in the directory of an object: it is not the object's.
	MountsIn(object Object) ([]mount.Point, error)
	// AllocatedBytes returns the space of a volume in the pool. For a directory without a size limit it
	// takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
	AllocatedBytes(ctx context.Context, id string) (int64, error)

	// removeEmpty removes a volume that has no data and is not in use. It reports whether it did, or
	// whether there is none.
	removeEmpty(ctx context.Context, id string) (bool, error)
	// copyOf returns the copy of an opened object, which is in the same pool or not. Errors: ErrTruncated.
	copyOf(t *transfer, within bool) (contents, error)
	// forget drops what is remembered of a volume that is removed.
	forget(id string)
}

// Growth describes how a volume grows.
type Growth struct {
	// From is what an image has at least. One that is shorter was truncated, and stays as it is.
	From int64
	// To is what it has at least afterwards.
	To int64
	// Thick allocates all blocks of an image.
	Thick bool
}

// Backing returns the volumes of a backing.
func (p *Pool) Backing(of volume.Backing) Backing {
	if of == volume.BackingDirectory {
		return p.Directories
	}

	return p.Images
}

// RemoveEmptyOrphan removes a volume without a record that has no data: an image without blocks that is not
// attached, or an empty directory. It reports whether it did.
func (p *Pool) RemoveEmptyOrphan(ctx context.Context, orphan Object) (bool, error) {
	if orphan.Snapshot {
		return false, nil
	}

	if err := checkID(orphan.ID); err != nil {
		return false, err
	}

	removed, err := p.Backing(orphan.Backing).removeEmpty(ctx, orphan.ID)
	if err != nil {
		return false, fmt.Errorf("orphan %s in pool %q: %w", orphan.ID, p.name, err)
	}

	return removed, nil
}
