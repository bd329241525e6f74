package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// ErrNoGroupCopy is returned if the pool cannot copy several images at one point in time.
var ErrNoGroupCopy = errdefs.New(errdefs.ErrFailedPrecondition, "the pool can't copy several images at one point in time")

// GroupCopy copies several images of a pool as they are at one point in time, in the order of the
// writes to them: a write is in the copies if a later one is that began after the first was durable.
// The images may be written meanwhile.
//
// Take makes one snapshot of the subvolume that contains the images, in scratch. CopyData then
// clones the images out of it, and Close removes it. After a crash only the snapshot remains, which
// RemoveStaleScratch removes.
type GroupCopy struct {
	id      string
	members []*ImageCopy
	// stored are the images of the pool.
	stored *Images

	// lock is the lock file of the snapshot.
	lock *os.File
	// root is the root of the subvolume that contains the pool's images, in the directory images.
	root   *os.File
	images string
}

// NewGroupCopy prepares a copy of the images that the members are copies of. id is one that no
// object of the pool has. Errors: ErrNoGroupCopy, ErrInProgress.
func (p *Pool) NewGroupCopy(id string, members []*ImageCopy) (*GroupCopy, error) {
	g := &GroupCopy{id: id, members: members, stored: p.Images}

	if err := g.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("pool %q: %w", p.name, err), g.Close())
	}

	return g, nil
}

func (g *GroupCopy) prepare() error {
	if err := checkID(g.id); err != nil {
		return err
	}

	for _, member := range g.members {
		if !member.PointInTime() || member.scratch != g.stored.scratch {
			return fmt.Errorf("%s: %w", member.source, ErrNoGroupCopy)
		}
	}

	images, err := g.stored.root.Open(".")
	if err != nil {
		return err
	}
	defer images.Close()

	supported, err := btrfs.IsFilesystem(images)
	if err != nil {
		return err
	}

	if !supported {
		return fmt.Errorf("%w: its filesystem is not btrfs", ErrNoGroupCopy)
	}

	if g.root, g.images, err = btrfs.OpenRoot(g.stored.root.Name()); err != nil {
		return fmt.Errorf("%w: %w", ErrNoGroupCopy, err)
	}

	if g.lock, err = g.stored.scratch.acquire(g.id); err != nil {
		return err
	}

	// The snapshot writes all dirty pages of the subvolume first. Write most of them now, to shorten
	// the time for which filesystems are frozen. Take returns the errors.
	_ = unix.Syncfs(int(images.Fd()))

	return nil
}

// Take fixes the point in time. It is one system call, which commits a transaction of the
// filesystem. Errors: ErrNoGroupCopy, ErrNoSpace.
func (g *GroupCopy) Take() error {
	err := tree.InDirectory(g.stored.scratch.root, func(scratch *os.File) error {
		err := btrfs.Snapshot(g.root, scratch, g.id)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: only the owner of the subvolume %s and root can; run the driver as one of them: %w",
				ErrNoGroupCopy, g.root.Name(), err)
		}

		return err
	})
	if err != nil {
		return g.stored.spaceError(fmt.Errorf("pool %q: %w", g.stored.name, err))
	}

	return nil
}

// CopyData is CopyData of each member, of the point in time that Take has fixed. Errors:
// ErrMissing, ErrTruncated, ErrNoSpace, filecopy.ErrCloneUnsupported, ctx's.
func (g *GroupCopy) CopyData(ctx context.Context) error {
	images, err := g.openImages()
	if err != nil {
		return fmt.Errorf("pool %q: %w", g.stored.name, err)
	}
	defer images.Close()

	for _, member := range g.members {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if err := member.image.cloneFrom(images); err != nil {
			return member.failed("copy", err)
		}
	}

	return nil
}

// openImages opens the pool's images in the snapshot.
func (g *GroupCopy) openImages() (*os.Root, error) {
	images, err := g.stored.scratch.root.OpenRoot(filepath.Join(g.id, g.images))
	if err != nil {
		return nil, err
	}

	// A snapshot keeps the numbers of inodes. A mount over a directory above the pool would have led to
	// another subvolume.
	live, err := statIn(g.stored.root, ".")
	taken, takenErr := statIn(images, ".")

	err = cmp.Or(err, takenErr)
	if err == nil && taken.Ino != live.Ino {
		err = fmt.Errorf("%w: %s in the snapshot is another directory; is a filesystem mounted over it?", ErrNoGroupCopy, g.images)
	}

	if err != nil {
		return nil, errors.Join(err, images.Close())
	}

	return images, nil
}

// Close removes the snapshot. It does not end the members' copies.
func (g *GroupCopy) Close() error {
	var err error

	// Without the lock the scratch is another process's.
	if g.lock != nil {
		err = g.stored.scratch.discard(g.id)
	}

	return errors.Join(err, closeOnce(&g.lock), closeOnce(&g.root))
}
