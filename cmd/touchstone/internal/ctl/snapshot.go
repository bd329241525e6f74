package ctl

import (
	"context"
	"errors"
	"iter"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// snapshot is a snapshot with the names that are known of snapshots and volumes, by id.
type snapshot struct {
	*csi.Snapshot

	names knownNames
}

var snapshotColumns = columns[snapshot]{
	{header: nameColumn, label: "Name:", text: func(s snapshot) string { return s.names[s.GetSnapshotId()] }},
	{header: "SNAPSHOT ID", label: "Snapshot ID:", text: func(s snapshot) string { return s.GetSnapshotId() }},
	{header: "SOURCE VOLUME", label: "Source volume:", text: func(s snapshot) string {
		return s.names.of(s.GetSourceVolumeId())
	}},
	{header: "SIZE", label: "Size:", text: func(s snapshot) string { return humanOrUnknown(s.GetSizeBytes()) }},
	{header: "CREATED", label: "Created:", text: func(s snapshot) string { return formatTime(s.GetCreationTime()) }},
	{header: "READY", label: "Ready to use:", text: func(s snapshot) string { return strconv.FormatBool(s.GetReadyToUse()) }},
	{header: "GROUP", label: "Group:", text: func(s snapshot) string { return orDash(s.names.of(s.GetGroupSnapshotId())) }},
	{label: "Topology:", text: func(s snapshot) string { return formatTopologies(s.GetAccessibleTopology()) }},
}

func snapshotCreateVerb() verb {
	request, wait := &csi.CreateSnapshotRequest{}, false

	return verb{
		name: "create", arguments: []argument{oneVolume, newName}, short: "CreateSnapshot", progress: true,
		long: `CreateSnapshot. The call is idempotent by name and source: the same command again
answers with the same snapshot. One that still has to be copied is taken but not
ready to use; --wait makes the call again until it is.`,
		example: `  touchstone ctl snapshot create data before-upgrade
  touchstone ctl snapshot create data rough --param consistency=none --wait`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var((*keyValues)(&request.Parameters), "param", "a VolumeSnapshotClass parameter (repeatable)")
			flags.BoolVar(&wait, "wait", false, "until it is ready to use")
		},
		run: func(ctx context.Context, s *session) error {
			request.SourceVolumeId, request.Name = s.args[0], s.args[1]

			create := s.CreateSnapshotAndWait
			if !wait {
				create = once(s.CreateSnapshot)
			}

			answer, err := copying(ctx, s, kindSnapshot, request.GetName(), func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
				return create(ctx, request)
			})
			s.names.add(answer.GetSnapshot().GetSnapshotId(), request.GetName())

			rows := s.snapshotSheet(answer.GetSnapshot())

			switch {
			case err != nil: // It may exist, and its id is needed.
			case answer.GetSnapshot().GetReadyToUse():
				rows = append([][]string{{"snapshot " + request.GetName() + " is ready"}}, rows...)
			default:
				state := " is not ready to use yet" + s.continuing(ctx, request.GetName())
				rows = append([][]string{{"snapshot " + request.GetName() + state}}, rows...)
			}

			return s.answer(answer, err, rows, answer.GetSnapshot().GetSnapshotId())
		},
	}
}

// once is a call without options.
func once[R, A any](call func(context.Context, R, ...grpc.CallOption) (A, error)) func(context.Context, R) (A, error) {
	return func(ctx context.Context, request R) (A, error) { return call(ctx, request) }
}

func (p *printer) snapshotSheet(of *csi.Snapshot) [][]string {
	return snapshotColumns.sheet(snapshot{of, p.names})
}

func snapshotListVerb() verb {
	var source identifier

	return verb{
		name: listName, aliases: []string{"ls"}, short: "ListSnapshots, all pages", lists: true,
		flags: func(flags *pflag.FlagSet) { flags.Var(&source, "volume", "only those of this volume") },
		run: func(ctx context.Context, s *session) error {
			// The source may be gone, and its snapshots there.
			if err := s.resolve(ctx, names.Volume, (*string)(&source)); err != nil && !errors.Is(err, errNoObject) {
				return err
			}

			if err := s.learn(ctx, names.Snapshot, names.Volume, names.Group); err != nil {
				return err
			}

			entries, err := collect(s.Snapshots(ctx, string(source), s.pageSize))
			if err != nil {
				return err
			}

			snapshots, ids := make([]snapshot, len(entries)), make([]string, len(entries))
			for i, entry := range entries {
				snapshots[i], ids[i] = snapshot{entry.GetSnapshot(), s.names}, entry.GetSnapshot().GetSnapshotId()
			}

			return s.show(&csi.ListSnapshotsResponse{Entries: entries}, snapshotColumns.table(s.output, snapshots...), ids...)
		},
	}
}

func snapshotVerb() verb {
	return verb{
		name: getName, arguments: []argument{oneSnapshot}, short: "GetSnapshot, or ListSnapshots by id of a driver that has only that",
		run: func(ctx context.Context, s *session) error {
			found, err := s.snapshot(ctx, s.args[0])
			if err != nil {
				return err
			}

			if err := s.learn(ctx, names.Volume, names.Group); err != nil {
				return err
			}

			return s.show(&csi.GetSnapshotResponse{Snapshot: found}, s.snapshotSheet(found), found.GetSnapshotId())
		},
	}
}

func (d driver) snapshot(ctx context.Context, id string) (*csi.Snapshot, error) {
	caps, err := d.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	return d.FindSnapshot(ctx, caps, id)
}

func snapshotDeletion() verb {
	return deletion("DeleteSnapshot", manySnapshots, func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

		return err
	})
}

func restoreVerb() verb {
	var what createFlags

	return verb{
		name: "restore", arguments: []argument{oneSnapshot, newName}, short: "CreateVolume from a snapshot", progress: true,
		long: `CreateVolume from a snapshot: a new volume named NAME that begins with its data.
Without --size it is as large as the snapshot says that it is; it may be larger,
not smaller. Name the use that the source had: --block for a raw one.`,
		example: `  touchstone ctl snapshot restore before data-restored --fs xfs
  touchstone ctl snapshot restore before data-larger --fs xfs --size 10Gi`,
		flags: what.register,
		run: func(ctx context.Context, s *session) error {
			request, err := what.request(s.args[1])
			if err != nil {
				return err
			}

			request.VolumeContentSource = csiclient.FromSnapshot(s.args[0])

			if what.required == 0 {
				snapshot, err := s.snapshot(ctx, s.args[0])
				if err != nil {
					return err
				}

				// Zero is "unknown" here and "no matter" there.
				request.CapacityRange = &csi.CapacityRange{RequiredBytes: snapshot.GetSizeBytes(), LimitBytes: int64(what.limit)}
			}

			return s.create(ctx, request)
		},
	}
}

func humanOrUnknown(size int64) string {
	if size == 0 {
		return dash
	}

	return formatBytes(size)
}

// formatTime has milliseconds, in which the members of a group may differ.
func formatTime(at *timestamppb.Timestamp) string {
	if at == nil {
		return dash
	}

	return at.AsTime().UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

func blocksVerb() verb {
	request := &csi.GetMetadataDeltaRequest{}

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
			flags.Var((*identifier)(&request.BaseSnapshotId), "since", "an older snapshot: only what differs from it")
			flags.Var((*size)(&request.StartingOffset), "starting-offset", "leave out what ends before this byte")
			flags.Int32Var(&request.MaxResults, "max-results", 0, "ranges in each message of the stream (default: the driver's choice)")
		},
		run: func(ctx context.Context, s *session) error {
			request.TargetSnapshotId = s.args[0]

			if err := s.resolve(ctx, names.Snapshot, &request.BaseSnapshotId); err != nil {
				return err
			}

			if request.GetBaseSnapshotId() != "" {
				return s.blocks(s.ChangedBlocks(ctx, request))
			}

			return s.blocks(s.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{
				SnapshotId: s.args[0], StartingOffset: request.GetStartingOffset(), MaxResults: request.GetMaxResults(),
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
func (p *printer) blocks(stream iter.Seq2[csiclient.BlockMetadata, error]) error {
	whole := &csi.GetMetadataAllocatedResponse{}

	for message, err := range stream {
		if err != nil {
			return err
		}

		whole.BlockMetadataType = message.GetBlockMetadataType()
		whole.VolumeCapacityBytes = message.GetVolumeCapacityBytes()
		whole.BlockMetadata = append(whole.BlockMetadata, message.GetBlockMetadata()...)
	}

	return p.show(whole, blockColumns.table(p.output, whole.GetBlockMetadata()...))
}
