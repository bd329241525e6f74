package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// changedBlocks measures both streams of a volume of which one block in a
// hundred has changed, once large blocks and once the smallest.
func (b *bench) changedBlocks(ctx context.Context, d *driver, large *csiclient.Publication) error {
	for _, each := range []struct {
		name  string
		bytes int64
	}{{"1 MiB", mib}, {"4 KiB", 4096}} {
		if err := b.changed(ctx, d, large, each.name, each.bytes); err != nil {
			return err
		}
	}

	return nil
}

func (b *bench) changed(ctx context.Context, d *driver, large *csiclient.Publication, name string, block int64) error {
	const count, hundredth = 20, 100

	base, err := d.snapshot(ctx, large.VolumeID, "base "+name)
	if err == nil {
		err = overwrite(d.seen(large.TargetPath), 10*gib, block, func(number int) bool { return number%hundredth == 0 })
	}

	if err != nil {
		return err
	}

	target, err := d.snapshot(ctx, large.VolumeID, "target "+name)
	if err != nil {
		return err
	}

	allocated, _, err := timed(ctx, 1, count, func(ctx context.Context, _ int) error {
		return atLeastBytes(10*gib, d.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: target}))
	})
	if err != nil {
		return err
	}

	changed, _, err := timed(ctx, 1, count, func(ctx context.Context, _ int) error {
		return atLeastBytes(10*gib/hundredth,
			d.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}))
	})
	if err != nil {
		return err
	}

	what := " of 10 GiB, 1 % changed in blocks of " + name + ": p50"
	b.results.put("GetMetadataAllocated"+what, allocated.quantile(0.5), atMost(100, "ms"))
	b.results.put("GetMetadataDelta"+what, changed.quantile(0.5), atMost(100, "ms"))

	return nil
}

var errTooFew = errors.New("the stream contains too few bytes")

// atLeastBytes reads a stream to its end.
func atLeastBytes(least int64, stream iter.Seq2[csiclient.BlockMetadata, error]) error {
	var told int64

	for blocks, err := range stream {
		if err != nil {
			return err
		}

		for _, each := range blocks.GetBlockMetadata() {
			told += each.GetSizeBytes()
		}
	}

	if told < least {
		return fmt.Errorf("%w: %d of %d", errTooFew, told, least)
	}

	return nil
}
