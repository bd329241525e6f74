package pool

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Object is what a pool holds bytes of: a volume or a snapshot.
type Object struct {
	ID       string
	Backing  volume.Backing
	Snapshot bool
}

// CopyOptions say what the copy shall be.
type CopyOptions struct {
	// SizeBytes is the least size of a copied image; 0 is the source's.
	SizeBytes int64
	// Thick gives the image all of its space, shared with no other.
	Thick bool
	// Progress, which may be nil, is told the bytes copied so far and of how
	// many, as they are copied; never for a copy that is instant.
	Progress func(done, total int64)
}

// Copy is an object that is being made of another. It is seen by nobody until
// Commit; a crash before leaves only scratch, which ClearScratch removes.
type Copy struct{}

// NewCopy prepares a copy of source, in the pool from, as target in this pool.
// Errors: ErrMissing.
func (p *Pool) NewCopy(from *Pool, source, target Object, options CopyOptions) (*Copy, error) {
	return nil, errors.ErrUnsupported
}

// Instant says whether Cut is atomic and takes no time (FICLONE), so that it
// gives one moment of a source that is being written meanwhile.
func (c *Copy) Instant() bool { return false }

// Cut takes the source's bytes. While it runs a source for which Instant is
// false must not be written. It neither waits for the disk nor makes the copy
// visible. Errors: ErrNoSpace, ctx's.
func (c *Copy) Cut(ctx context.Context) error { return errors.ErrUnsupported }

// Commit makes the copy be the target, durably, and says how many bytes of the
// pool it holds, shared ones included. Errors: ErrNoSpace.
func (c *Copy) Commit() (allocatedBytes int64, err error) { return 0, errors.ErrUnsupported }

// Abort removes what is not committed. It may be called after Commit, and then
// only gives back what the copy has open.
func (c *Copy) Abort() error { return errors.ErrUnsupported }

// Reflinks says whether copies within the pool are instant.
func (p *Pool) Reflinks() bool { return false }

// RemoveSnapshot makes a snapshot's bytes be gone. What is gone already is no
// error.
func (p *Pool) RemoveSnapshot(id string, backing volume.Backing) error { return errors.ErrUnsupported }

// ListSnapshots calls visit for every snapshot that the pool holds, in no
// order, until visit returns an error.
func (p *Pool) ListSnapshots(ctx context.Context, visit func(Entry) error) error { return nil }
