package demo

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

func (d *demo) getChangedBlocks(a *copySet) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := "base=…" + endOfID(a.before.id) + " target=…" + endOfID(a.after.id)

		ranges, changed, of, err := sumBlocks(d.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: a.before.id, TargetSnapshotId: a.after.id,
		}))

		switch {
		case err != nil:
			return outcome{with: with}, err
		case changed < payloadBytes:
			return outcome{with: with}, fmt.Errorf("%w: %s", errDeltaTooSmall, formatBytes(changed))
		case changed > of/2:
			return outcome{with: with}, fmt.Errorf("%w: %s", errDeltaTooLarge, formatBytes(changed))
		}

		return outcome{with: with, got: fmt.Sprintf("%s of %s, in %d ranges", formatBytes(changed), formatBytes(of), ranges)}, nil
	}
}

func (d *demo) getAllocatedBlocks(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		ranges, held, of, err := sumBlocks(d.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: s.id}))
		if err == nil && held < payloadBytes {
			err = fmt.Errorf("%w: %s", errNothingWritten, formatBytes(held))
		}

		return outcome{
			with: s.short() + " (its source is gone)",
			got:  fmt.Sprintf("%s of %s, in %d ranges", formatBytes(held), formatBytes(of), ranges),
		}, err
	}
}

// sumBlocks returns the number of ranges in a stream, their bytes, and the bytes of the
// volume.
func sumBlocks(stream func(yield func(csiclient.BlockMetadata, error) bool)) (ranges int, sum, capacity int64, err error) {
	for message, err := range stream {
		if err != nil {
			return 0, 0, 0, err
		}

		capacity = message.GetVolumeCapacityBytes()
		for _, block := range message.GetBlockMetadata() {
			ranges++
			sum += block.GetSizeBytes()
		}
	}

	return ranges, sum, capacity, nil
}
