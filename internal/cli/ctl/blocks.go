package ctl

import (
	"context"
	"iter"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

func newBlocksCommand(given *settings) *cobra.Command {
	var (
		base       identifier
		start      size
		maxResults int32
	)

	cmd := &cobra.Command{
		Use:   "blocks SNAPSHOT",
		Short: "GetMetadataAllocated: where a snapshot has data; GetMetadataDelta with --since: what changed",
		Long: `GetMetadataAllocated: the ranges of a snapshot that hold data. With --since it is
GetMetadataDelta: the ranges in which the snapshot may differ from an older one of
the same volume. Offsets and lengths are bytes. A stream that breaks is an error,
so exit code 0 means that the list is whole.`,
		Example: `  touchstone ctl snapshot blocks after
  touchstone ctl snapshot blocks after --since before -o json`,
		Args:              exactly(1),
		ValidArgsFunction: completeNames(given, names.Snapshot, 0, 0),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			if err := s.resolve(ctx, names.Snapshot, &s.args[0], (*string)(&base)); err != nil {
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
		}),
	}
	cmd.Flags().Var(&base, "since", "an older snapshot: only what differs from it")
	cmd.Flags().Var(&start, "starting-offset", "leave out what ends before this byte")
	cmd.Flags().Int32Var(&maxResults, "max-results", 0, "ranges in each message of the stream (default: the driver's choice)")

	return cmd
}

// blocks shows all messages of a stream as one. Those of the two calls have the
// same fields.
func (s *session) blocks(stream iter.Seq2[csiclient.BlockMetadata, error]) error {
	whole := &csi.GetMetadataAllocatedResponse{}
	rows := [][]string{{"OFFSET", "LENGTH"}}

	for message, err := range stream {
		if err != nil {
			return err
		}

		whole.BlockMetadataType = message.GetBlockMetadataType()
		whole.VolumeCapacityBytes = message.GetVolumeCapacityBytes()
		whole.BlockMetadata = append(whole.BlockMetadata, message.GetBlockMetadata()...)

		for _, block := range message.GetBlockMetadata() {
			rows = append(rows, []string{
				strconv.FormatInt(block.GetByteOffset(), 10), strconv.FormatInt(block.GetSizeBytes(), 10),
			})
		}
	}

	return s.show(whole, rows)
}
