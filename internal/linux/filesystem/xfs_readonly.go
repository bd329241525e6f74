package filesystem

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// xfsBadBlocks are parts of xfs_repair's messages about blocks that are invalid whatever the log
// contains: a freeze has written all blocks.
var xfsBadBlocks = []string{"Metadata CRC error detected", "Metadata corruption detected", "bad magic number"}

func (x *xfs) CheckReadOnly(ctx context.Context, path string, o ReadOnlyCheckOptions) (Verdict, error) {
	t, verdict, err := inspectForCheck(path, XFS)
	if err != nil || verdict.State == Damaged {
		return verdict, err
	}

	// With a dirty log xfs_repair reports damage that a replay would repair, and takes long.
	dirty, err := x.logIsDirty(ctx, path, Command{Idle: !o.Urgent})
	if err != nil {
		return Verdict{}, err
	}

	if dirty && !o.Frozen {
		return Verdict{State: NeedsReplay, Detail: "the log holds changes"}, nil
	}

	return x.check(ctx, path, t, Command{Idle: !o.Urgent}, dirty)
}

// ConsistentWhileWritten is false: blocks are overwritten in place, one by one.
func (*xfs) ConsistentWhileWritten() bool { return false }

// ReplayFlags let a copy be mounted beside its source, which has the same UUID.
func (x *xfs) ReplayFlags() []string { return x.DuplicateUUIDFlags() }

// CopyMetadata goes by way of a dump, which has no name and is gone with the last
// process that has it open.
func (x *xfs) CopyMetadata(ctx context.Context, source, target string, o ReadOnlyCheckOptions) (*MetadataCopy, error) {
	dump, err := CreateUnnamed(filepath.Dir(target))
	if err != nil {
		return nil, fmt.Errorf("copy the metadata of %s: %w", source, err)
	}

	// xfs_metadump is a script, and a signal to it would not reach xfs_db.
	command := Command{
		Tool: "xfs_db", Package: xfsPackage, InheritedFile: dump, Idle: !o.Urgent,
		Args: []string{"-i", "-f", "-p", "xfs_metadump", "-c", "metadump -o " + inheritedFilePath, "--", source},
	}
	if err := runTool(ctx, x.run, command); err != nil {
		return nil, errors.Join(fmt.Errorf("copy the metadata of %s: %w", source, err), dump.Close())
	}

	complete := func(ctx context.Context) error {
		command := Command{Tool: "xfs_mdrestore", Package: xfsPackage, InheritedFile: dump, Args: []string{inheritedFilePath, target}, Idle: true}
		if err := runTool(ctx, x.run, command); err != nil {
			return fmt.Errorf("restore the metadata of %s: %w", source, err)
		}

		return nil
	}

	return &MetadataCopy{complete: complete, dump: dump}, nil
}
