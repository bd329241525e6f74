package pool

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// prepareTree makes the scratch directory, unless the snapshot will be it.
func (c *Copy) prepareTree() error {
	if c.pointInTime {
		return nil
	}

	if err := c.pool.quotas.Make(c.pool.scratch, c.target.ID, directoryMode); err != nil {
		return err
	}

	return c.openTree()
}

// openTree opens the scratch directory. It limits the size of a subvolume before anything is written,
// so that a copy that is too large fails early.
func (c *Copy) openTree() error {
	var err error
	if c.tree, err = tree.OpenIn(c.pool.scratch, c.target.ID, os.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return err
	}

	if c.isProject() {
		return nil
	}

	return c.limitTree()
}

func (c *Copy) limitTree() error {
	if c.options.SizeBytes == 0 {
		return nil
	}

	return c.pool.quotas.Limit(c.tree, c.options.SizeBytes)
}

func (c *Copy) isProject() bool { return c.pool.quotas.Support().Kind == quota.Project }

// completeProject limits the copy, if it is a project, after everything is written: for FICLONE of a
// file, XFS needs more space below the limit than the file takes, so that a full volume could not be
// copied to one of the same size.
func (c *Copy) completeProject() error {
	if !c.isProject() {
		return nil
	}

	return c.limitTree()
}

// snapshotTree copies a directory at one point in time.
func (c *Copy) snapshotTree() error {
	if err := c.pool.quotas.Snapshot(c.opened, c.pool.scratch, c.target.ID); err != nil {
		return err
	}

	// As the kernel counts it: a walk would take time in proportion to the number of files. The
	// snapshot has written the data that was not counted yet.
	usage, _, err := c.pool.quotas.Usage(c.opened)
	if err != nil {
		return err
	}

	c.allocated = usage.Bytes

	return c.openTree()
}

// copyTree copies a directory, as tree.Copier does.
func (c *Copy) copyTree(ctx context.Context) error {
	links := c.tree

	if !c.linksInTree() {
		scratch, err := c.pool.scratch.Open(".")
		if err != nil {
			return err
		}
		defer scratch.Close()

		links = scratch
	}

	copier := tree.NewCopier(c.tree, links, c.linksName())
	defer func() {
		c.allocated = copier.AllocatedBytes()
		copier.Close()
	}()

	return copier.Copy(ctx, c.opened, c.options.Progress)
}

// linksInTree reports whether the copier's directory of hard links is in the copy, because a file of
// a subvolume cannot be linked from outside. Its name has the random id of the target, which no file
// of the source has. A project's files can be, and the directory must not count for its limit.
func (c *Copy) linksInTree() bool { return c.pool.quotas.Support().Kind == quota.Subvolume }

func (c *Copy) linksName() string { return c.target.ID + layout.LinksSuffix }

// removeLinks removes the copier's directory of hard links from the copy.
func (c *Copy) removeLinks(ctx context.Context) error {
	if c.pointInTime || !c.linksInTree() {
		return nil
	}

	return tree.Remove(ctx, c.tree, c.linksName())
}

// commitTree syncs the scratch directory and renames it into place.
func (c *Copy) commitTree(ctx context.Context) (int64, error) {
	made, err := tree.Stat(c.tree)
	if err != nil {
		return 0, err
	}

	if err := c.removeLinks(ctx); err != nil {
		return 0, err
	}

	if err := c.completeProject(); err != nil {
		return 0, err
	}

	if err := c.syncTree(); err != nil {
		return 0, err
	}

	if err := c.removeSealed(ctx); err != nil {
		return 0, err
	}

	if err := c.pool.renameFromScratch(c.target); err != nil {
		return 0, err
	}

	// XFS changes the times of directories that RENAME_EXCHANGE swaps.
	if err := tree.RestoreTimes(c.tree, made); err != nil {
		return 0, err
	}

	if err := c.completeTree(); err != nil {
		return 0, err
	}

	// The scratch still has the lock file, and the directory that the copy replaced.
	return c.allocated, c.pool.discardScratch(c.target.ID)
}

// removeSealed removes an earlier snapshot at the path of the target, which cannot be renamed.
func (c *Copy) removeSealed(ctx context.Context) error {
	if !c.target.Snapshot {
		return nil
	}

	snapshots, err := c.pool.snapshots.Open(".")
	if err != nil {
		return err
	}
	defer snapshots.Close()

	_, err = c.pool.quotas.Remove(ctx, snapshots, c.target.ID)

	return err
}

// syncTree makes the content of a copy durable that was written file by file.
func (c *Copy) syncTree() error {
	if c.pointInTime {
		return nil
	}

	// The descriptor was opened before the first write, so syncfs reports every write error since
	// then. A sync of each file would commit the journal once per file.
	if err := eintr.Retry(func() error { return unix.Syncfs(int(c.tree.Fd())) }); err != nil {
		return fmt.Errorf("syncfs: %w", err)
	}

	return nil
}

// completeTree makes the limit of a volume durable, and a snapshot unwritable.
func (c *Copy) completeTree() error {
	if c.target.Snapshot {
		return c.pool.quotas.Seal(c.tree)
	}

	return c.pool.quotas.Sync(c.tree)
}
