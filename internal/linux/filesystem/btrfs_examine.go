package filesystem

import (
	"context"
	"errors"
	"fmt"
)

// Examine has btrfs check not mind that the image is mounted.
func (b *btrfs) Examine(ctx context.Context, path string, o ExamineOptions) (Verdict, error) {
	return b.check(ctx, path, Command{Idle: !o.Urgent}, "--force")
}

// CleanWhileWritten is true: all of one tree is there until the next one is, and
// what has changed under the tool is damage to it.
func (*btrfs) CleanWhileWritten() bool { return true }

// ReplayFlags: Examine never asks for it.
func (*btrfs) ReplayFlags() []string { return nil }

// CopyMetadata: what btrfs-image makes is another filesystem, with chunks of its
// own.
func (*btrfs) CopyMetadata(context.Context, string, string, ExamineOptions) (*MetadataCopy, error) {
	return nil, fmt.Errorf("copy the metadata of btrfs: %w", errors.ErrUnsupported)
}
