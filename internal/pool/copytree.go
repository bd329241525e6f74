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

// treeCopy copies a directory.
type treeCopy struct {
	*transfer

	// quotas makes and limits the directories of the target's pool.
	quotas quota.Directories
	// snapshots means that the copy is a snapshot of the source.
	snapshots bool
	// tree is the root of the scratch directory, opened before the first write, so that syncfs
	// reports each write error since then.
	tree *os.File
	// allocated is the space of the scratch directory in bytes.
	allocated int64
}

// copyOf returns the copy of a directory.
func (d *Directories) copyOf(t *transfer, within bool) (contents, error) {
	return &treeCopy{transfer: t, quotas: d.quotas, snapshots: within && d.quotas.CanSnapshot(t.opened)}, nil
}

func (c *treeCopy) pointInTime() bool { return c.snapshots }

func (c *treeCopy) close() error { return closeOnce(&c.tree) }

// prepare makes the scratch directory, unless the snapshot will be it.
func (c *treeCopy) prepare() error {
	if c.snapshots {
		return nil
	}

	if err := c.quotas.Make(c.scratch.root, c.target.ID, directoryMode); err != nil {
		return err
	}

	return c.open()
}

// open opens the scratch directory. It limits the size of a subvolume before anything is written,
// so that a copy that is too large fails early.
func (c *treeCopy) open() error {
	var err error
	if c.tree, err = tree.OpenIn(c.scratch.root, c.target.ID, os.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return err
	}

	return c.limit(false)
}

// limit limits the size of the copy, if it is a project or if not. A project is limited after everything
// is written: for FICLONE of a file, XFS needs more space below the limit than the file takes, so that a
// full volume could not be copied to one of the same size.
func (c *treeCopy) limit(projects bool) error {
	if c.options.SizeBytes == 0 || projects != (c.quotas.Support().Kind == quota.Project) {
		return nil
	}

	return c.quotas.Limit(c.tree, c.options.SizeBytes)
}

// snapshot copies a directory at one point in time.
func (c *treeCopy) snapshot() error {
	if err := c.quotas.Snapshot(c.opened, c.scratch.root, c.target.ID); err != nil {
		return err
	}

	// As the kernel counts it: a walk would take time in proportion to the number of files. The
	// snapshot has written the data that was not counted yet.
	usage, _, err := c.quotas.Usage(c.opened)
	if err != nil {
		return err
	}

	c.allocated = usage.Bytes

	return c.open()
}

// copy copies a directory at one point in time, or as tree.Copier does.
func (c *treeCopy) copy(ctx context.Context) error {
	if c.snapshots {
		return c.snapshot()
	}

	links := c.tree

	if !c.linksInTree() {
		scratch, err := c.scratch.root.Open(".")
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
func (c *treeCopy) linksInTree() bool { return c.quotas.Support().Kind == quota.Subvolume }

func (c *treeCopy) linksName() string { return c.target.ID + layout.LinksSuffix }

// removeLinks removes the copier's directory of hard links from the copy.
func (c *treeCopy) removeLinks(ctx context.Context) error {
	if c.snapshots || !c.linksInTree() {
		return nil
	}

	return tree.Remove(ctx, c.tree, c.linksName())
}

// commit syncs the scratch directory and renames it into place. The scratch then still has the lock
// file, and the directory that the copy replaced.
func (c *treeCopy) commit(ctx context.Context) (int64, error) {
	made, err := tree.Stat(c.tree)
	if err != nil {
		return 0, err
	}

	for _, step := range []func() error{
		func() error { return c.removeLinks(ctx) },
		func() error { return c.limit(true) },
		c.sync,
		func() error { return c.removeSealed(ctx) },
		c.publish,
		// XFS changes the times of directories that RENAME_EXCHANGE swaps.
		func() error { return tree.RestoreTimes(c.tree, made) },
		c.complete,
	} {
		if err := step(); err != nil {
			return 0, err
		}
	}

	return c.allocated, c.scratch.discard(c.target.ID)
}

// removeSealed removes an earlier snapshot at the path of the target, which cannot be renamed.
func (c *treeCopy) removeSealed(ctx context.Context) error {
	if !c.target.Snapshot {
		return nil
	}

	return tree.InDirectory(c.into, func(snapshots *os.File) error {
		_, err := c.quotas.Remove(ctx, snapshots, c.target.ID)

		return err
	})
}

// sync makes the content of a copy durable that was written file by file.
func (c *treeCopy) sync() error {
	if c.snapshots {
		return nil
	}

	// The descriptor was opened before the first write, so syncfs reports every write error since
	// then. A sync of each file would commit the journal once per file.
	if err := eintr.Retry(func() error { return unix.Syncfs(int(c.tree.Fd())) }); err != nil {
		return fmt.Errorf("syncfs: %w", err)
	}

	return nil
}

// complete makes the limit of a volume durable, and a snapshot unwritable.
func (c *treeCopy) complete() error {
	if c.target.Snapshot {
		return c.quotas.Seal(c.tree)
	}

	return c.quotas.Sync(c.tree)
}
