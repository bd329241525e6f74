package filesystem

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
)

func (e *ext4) CheckReadOnly(ctx context.Context, path string, o ReadOnlyCheckOptions) (Verdict, error) {
	_, verdict, err := inspectForCheck(path, Ext4)
	if err != nil || verdict.State == Damaged {
		return verdict, err
	}

	super, err := readFrom(path, readExt4Superblock)
	if err != nil {
		return Verdict{}, fmt.Errorf("check %s: %w", path, err)
	}

	switch {
	case binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4FlagRecover != 0:
		return Verdict{State: NeedsReplay, Detail: "the journal holds changes"}, nil
	case binary.LittleEndian.Uint32(super[ext4LastOrphan:]) != 0,
		binary.LittleEndian.Uint32(super[ext4ReadOnlyCompat:])&ext4FlagOrphans != 0:
		return Verdict{State: NeedsReplay, Detail: "files that were deleted while they were open are to be removed"}, nil
	}

	// No lock: it would keep the image from being attached, for as long as this
	// takes, and nothing is written.
	command := Command{Tool: "e2fsck", Package: ext4Package, Idle: !o.Urgent, Args: []string{"-f", "-n", "--", path}}

	result, err := runReader(ctx, e.run, path, command)
	if err != nil {
		return Verdict{}, err
	}

	return e.judge(path, command, result)
}

// ConsistentWhileWritten is false: blocks are overwritten in place, one by one.
func (*ext4) ConsistentWhileWritten() bool { return false }

// ReplayFlags let no error be more than that, and begin no work of hours.
func (*ext4) ReplayFlags() []string { return []string{"errors=remount-ro", "noinit_itable"} }

// FinishReplay has nothing to do.
func (*ext4) FinishReplay(*os.File) error { return nil }

// CopyMetadata has e2image write the copy itself.
func (e *ext4) CopyMetadata(ctx context.Context, source, target string, o ReadOnlyCheckOptions) (*MetadataCopy, error) {
	command := Command{Tool: "e2image", Package: ext4Package, Idle: !o.Urgent, Args: []string{"-r", "-f", "--", source, target}}
	if err := runTool(ctx, e.run, command); err != nil {
		return nil, fmt.Errorf("copy the metadata of %s: %w", source, err)
	}

	return &MetadataCopy{}, nil
}
