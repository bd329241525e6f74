package ctl

import (
	"context"
	"iter"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

func blocksVerb() verb {
	var (
		base       identifier
		start      size
		maxResults int32
	)

	return verb{
		name: "blocks", arguments: []argument{oneSnapshot},
		short: "GetMetadataAllocated: where a snapshot has data; GetMetadataDelta with --since: what changed",
		long: `GetMetadataAllocated: the ranges of a snapshot that hold data. With --since it is
GetMetadataDelta: the ranges in which the snapshot may differ from an older one of
the same volume. Offsets and lengths are bytes. A stream that breaks is an error,
so exit code 0 means that the list is whole.`,
		example: `  touchstone ctl snapshot blocks after
  touchstone ctl snapshot blocks after --since before -o json`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(&base, "since", "an older snapshot: only what differs from it")
			flags.Var(&start, "starting-offset", "leave out what ends before this byte")
			flags.Int32Var(&maxResults, "max-results", 0, "ranges in each message of the stream (default: the driver's choice)")
		},
		run: func(ctx context.Context, s *session) error {
			if err := s.resolve(ctx, names.Snapshot, (*string)(&base)); err != nil {
				return err
			}

			if base == "" {
				return s.blocks(s.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{
					SnapshotId: s.args[0], StartingOffset: int64(start), MaxResults: maxResults,
				}))
			}

			return s.blocks(s.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
				BaseSnapshotId: string(base), TargetSnapshotId: s.args[0], StartingOffset: int64(start), MaxResults: maxResults,
			}))
		},
	}
}

var blockColumns = columns[*csi.BlockMetadata]{
	{header: "OFFSET", text: func(b *csi.BlockMetadata) string { return strconv.FormatInt(b.GetByteOffset(), 10) }},
	{header: "LENGTH", text: func(b *csi.BlockMetadata) string { return strconv.FormatInt(b.GetSizeBytes(), 10) }},
}

// blocks shows all messages of a stream as one. Those of the two calls have the
// same fields.
func (s *session) blocks(stream iter.Seq2[csiclient.BlockMetadata, error]) error {
	whole := &csi.GetMetadataAllocatedResponse{}

	for message, err := range stream {
		if err != nil {
			return err
		}

		whole.BlockMetadataType = message.GetBlockMetadataType()
		whole.VolumeCapacityBytes = message.GetVolumeCapacityBytes()
		whole.BlockMetadata = append(whole.BlockMetadata, message.GetBlockMetadata()...)
	}

	return s.show(whole, blockColumns.table(s.format, whole.GetBlockMetadata()...))
}
