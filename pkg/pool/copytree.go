package pool

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/pool/tree"
)

// copyTree copies a directory, as tree.Copier does.
func (c *Copy) copyTree(ctx context.Context) error {
	copier := tree.NewCopier(c.tree, c.pool.scratch, c.target.ID+layout.LinksSuffix)
	defer func() {
		c.allocated = copier.AllocatedBytes()
		copier.Close()
	}()

	return copier.Copy(ctx, c.opened, c.options.Progress)
}

// commitTree syncs the scratch directory and renames it into place.
func (c *Copy) commitTree() (int64, error) {
	// The descriptor was opened before the first write, so syncfs reports every write error since
	// then. A sync of each file would commit the journal once per file.
	if err := eintr.Retry(func() error { return unix.Syncfs(int(c.tree.Fd())) }); err != nil {
		return 0, fmt.Errorf("syncfs: %w", err)
	}

	made, err := tree.Stat(c.tree)
	if err != nil {
		return 0, err
	}

	if err := c.pool.renameFromScratch(c.target); err != nil {
		return 0, err
	}

	// XFS changes the times of directories that RENAME_EXCHANGE swaps.
	if err := tree.RestoreTimes(c.tree, made); err != nil {
		return 0, err
	}

	// The scratch still has the lock file, and the directory that the copy replaced.
	return c.allocated, c.pool.discardScratch(c.target.ID)
}
