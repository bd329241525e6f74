package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// CheckReadOnly passes --force, so that btrfs check accepts a mounted image.
func (b *btrfs) CheckReadOnly(ctx context.Context, path string, o ReadOnlyCheckOptions) (Verdict, error) {
	return b.check(ctx, path, Command{Idle: !o.Urgent}, "--force")
}

// ConsistentWhileWritten is true: a tree stays complete until the next one is, and the tool reports
// what changes during its run as damage.
func (*btrfs) ConsistentWhileWritten() bool { return true }

// ReplayFlags: CheckReadOnly never asks for it.
func (*btrfs) ReplayFlags() []string { return nil }

// FinishReplay has nothing to do.
func (*btrfs) FinishReplay(*os.File) error { return nil }

// CopyMetadata: what btrfs-image makes is another filesystem, with chunks of its
// own.
func (*btrfs) CopyMetadata(context.Context, string, string, ReadOnlyCheckOptions) (*MetadataCopy, error) {
	return nil, fmt.Errorf("copy the metadata of btrfs: %w", errors.ErrUnsupported)
}
