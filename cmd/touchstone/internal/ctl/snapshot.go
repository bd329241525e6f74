package ctl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	{header: "SNAPSHOT ID", label: "Snapshot ID:", text: func(s snapshot) string { return s.GetSnapshotId() }, id: true},
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
		name: createName, arguments: []argument{oneVolume, newName}, short: "CreateSnapshot", progress: true,
		long: `CreateSnapshot. The call is idempotent by name and source: the same command again
answers with the same snapshot. One that still has to be copied is taken but not
ready to use; --wait makes the call again until it is.`,
		example: `  touchstone ctl snapshot create data before-upgrade
  touchstone ctl snapshot create data rough --param consistency=none --wait`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(keyValues(&request.Parameters), "param", "a VolumeSnapshotClass parameter (repeatable)")
			flags.BoolVar(&wait, "wait", false, "until it is ready to use")
		},
		run: func(ctx context.Context, s *session) error {
			request.SourceVolumeId, request.Name = s.args[0], s.args[1]
			answer, err := copying(ctx, s, kindSnapshot, request.GetName(), func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
				if wait {
					return s.CreateSnapshotAndWait(ctx, request)
				}

				return s.CreateSnapshot(ctx, request)
			})
			taken, state := answer.GetSnapshot(), " is ready"
			s.names.add(taken.GetSnapshotId(), request.GetName())

			rows := s.snapshotSheet(taken)
			if err != nil { // It may exist, and its id is needed.
				return s.show(err, answer, rows, taken.GetSnapshotId())
			}

			if !taken.GetReadyToUse() {
				state = " is not ready to use yet" + continuing(ctx, s.Client, request.GetName())
			}

			return s.show(nil, answer, titled("snapshot "+request.GetName()+state, rows), taken.GetSnapshotId())
		},
	}
}

func (p *printer) snapshotSheet(of *csi.Snapshot) [][]string {
	return snapshotColumns.sheet(snapshot{of, p.names})
}

func snapshotListVerb() verb {
	var source string

	return verb{
		name: listName, aliases: []string{"ls"}, short: "ListSnapshots, all pages", lists: true,
		flags: func(flags *pflag.FlagSet) { flags.Var(identifier(&source), "volume", "only those of this volume") },
		run: func(ctx context.Context, s *session) error {
			// The source may be gone, and its snapshots there.
			if err := s.resolve(ctx, names.Volume, &source); err != nil && !errors.Is(err, errNoObject) {
				return err
			}

			if err := s.learn(ctx, names.Snapshot, names.Volume, names.Group); err != nil {
				return err
			}

			entries, err := collect(s.Snapshots(ctx, source, s.pageSize))

			return snapshotColumns.show(s.printer, err, &csi.ListSnapshotsResponse{Entries: entries},
				mapped(entries, func(entry *csi.ListSnapshotsResponse_Entry) snapshot { return snapshot{entry.GetSnapshot(), s.names} })...)
		},
	}
}

var snapshotVerb = verb{
	name: getName, arguments: []argument{oneSnapshot}, short: "GetSnapshot, or ListSnapshots by id of a driver that has only that",
	run: func(ctx context.Context, s *session) error {
		found, err := findSnapshot(ctx, s.Client, s.args[0])
		if err != nil {
			return err
		}

		if err := s.learn(ctx, names.Volume, names.Group); err != nil {
			return err
		}

		return s.show(nil, &csi.GetSnapshotResponse{Snapshot: found}, s.snapshotSheet(found), found.GetSnapshotId())
	},
}

func findSnapshot(ctx context.Context, co *csiclient.Client, id string) (*csi.Snapshot, error) {
	caps, err := co.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	return co.FindSnapshot(ctx, caps, id)
}

func snapshotDeletion() verb {
	return deletion("DeleteSnapshot", manySnapshots, func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		if status.Code(err) != codes.InvalidArgument {
			return err
		}

		group, _ := s.groupOf(ctx, id)

		return &explained{err, strings.ReplaceAll(err.Error(), "call DeleteVolumeGroupSnapshot", deleteGroup+s.names.of(group))}
	}, func(ctx context.Context, s *session, id string) error {
		group, err := s.groupOf(ctx, id)
		if group == "" {
			return err
		}

		return fmt.Errorf("%w: it is a member of group snapshot %s and goes with it; %s", errRefused, group, deleteGroup+s.names.of(group))
	})
}

// deleteGroup begins the command that deletes a group.
const deleteGroup = "touchstone ctl group delete "

// groupOf returns the id of the group that a snapshot is a member of, if there are both and the driver reports it.
func (s *session) groupOf(ctx context.Context, snapshotID string) (string, error) {
	found, err := findSnapshot(ctx, s.Client, snapshotID)
	if code := status.Code(err); code == codes.NotFound || code == codes.Unimplemented || errors.Is(err, csiclient.ErrNoSnapshot) {
		return "", nil
	}

	return found.GetGroupSnapshotId(), errors.Join(err, s.learn(ctx, names.Group))
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
				snapshot, err := findSnapshot(ctx, s.Client, s.args[0])
				if err != nil {
					return err
				}

				// Zero is "unknown" here and "no matter" there, and a range needs one of both.
				if size := snapshot.GetSizeBytes(); size > 0 || what.limit > 0 {
					request.CapacityRange = &csi.CapacityRange{RequiredBytes: size, LimitBytes: what.limit}
				}
			}

			return s.create(ctx, kindRestore, request)
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
		name: "blocks", arguments: []argument{oneSnapshot}, nameless: true,
		short: "GetMetadataAllocated: where a snapshot has data; GetMetadataDelta with --since: what changed",
		long: `GetMetadataAllocated: the ranges of a snapshot that hold data. With --since it is
GetMetadataDelta: the ranges in which the snapshot may differ from an older one of
the same volume. Offsets and lengths are bytes. A stream that breaks is an error,
so exit code 0 means that the list is whole.`,
		example: `  touchstone ctl snapshot blocks after
  touchstone ctl snapshot blocks after --since before -o json`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(identifier(&request.BaseSnapshotId), "since", "an older snapshot: only what differs from it")
			flags.Var(size(&request.StartingOffset), "starting-offset", "leave out what ends before this byte")
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

	return blockColumns.show(p, nil, whole, whole.GetBlockMetadata()...)
}

func groupCreateVerb() verb {
	request, wait := &csi.CreateVolumeGroupSnapshotRequest{}, false

	return verb{
		name: createName, arguments: []argument{manyVolumes, newName}, short: "CreateVolumeGroupSnapshot", progress: true,
		long: `CreateVolumeGroupSnapshot: a point-in-time snapshot of all volumes, or none.
Each can be restored alone; they are deleted together.`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(keyValues(&request.Parameters), "param", "a VolumeGroupSnapshotClass parameter (repeatable)")
			flags.BoolVar(&wait, "wait", false, "until all of it is ready to use")
		},
		run: func(ctx context.Context, s *session) error {
			last := len(s.args) - 1
			request.Name, request.SourceVolumeIds = s.args[last], s.args[:last]
			answer, err := copying(ctx, s, kindGroup, request.GetName(), func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) {
				if wait {
					return s.CreateGroupSnapshotAndWait(ctx, request)
				}

				return s.CreateVolumeGroupSnapshot(ctx, request)
			})
			taken := answer.GetGroupSnapshot()
			s.names.add(taken.GetGroupSnapshotId(), request.GetName())

			rows := s.groupSheet(taken)
			if taken.GetReadyToUse() {
				rows = titled("group "+request.GetName()+" is ready", rows)
			}

			return s.show(err, answer, rows, taken.GetGroupSnapshotId())
		},
	}
}

// memberFlags are the ids of a group's snapshots, which the spec requires in each call for it.
type memberFlags struct{ ids []string }

func (f *memberFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.ids, "snapshot", nil,
		"the id of a member (repeatable; default: those that ListSnapshots shows)")
}

func (f *memberFlags) of(ctx context.Context, s *session, groupID string) ([]string, error) {
	if len(f.ids) > 0 {
		return f.ids, nil
	}

	return s.GroupMembers(ctx, groupID)
}

func groupVerb() verb {
	var members memberFlags

	return verb{
		name: getName, arguments: []argument{oneGroup}, short: "GetVolumeGroupSnapshot", flags: members.register,
		run: func(ctx context.Context, s *session) error {
			ids, err := members.of(ctx, s, s.args[0])
			if err != nil {
				return err
			}

			if err := s.learn(ctx, names.Volume); err != nil {
				return err
			}

			answer, err := s.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: s.args[0], SnapshotIds: ids})

			return s.show(err, answer, s.groupSheet(answer.GetGroupSnapshot()), answer.GetGroupSnapshot().GetGroupSnapshotId())
		},
	}
}

func groupDeletion() verb {
	var members memberFlags

	return deletion("DeleteVolumeGroupSnapshot", manyGroups, func(ctx context.Context, s *session, id string) error {
		ids, err := members.of(ctx, s, id)
		if err != nil {
			return err
		}

		_, err = s.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: ids})

		return err
	}, func(context.Context, *session, string) error { return nil }, members.register)
}

// groupSheet describes a group, and then its members, which have no names, in a table.
func (p *printer) groupSheet(g *csi.VolumeGroupSnapshot) [][]string {
	members := mapped(g.GetSnapshots(), func(each *csi.Snapshot) snapshot { return snapshot{each, p.names} })

	return slices.Concat([][]string{
		{"Name:", orDash(p.names[g.GetGroupSnapshotId()])},
		{"Group ID:", g.GetGroupSnapshotId()},
		{"Created:", formatTime(g.GetCreationTime())},
		{"Ready to use:", strconv.FormatBool(g.GetReadyToUse())},
		{},
	}, snapshotColumns[1:].table(outputTable, members...))
}
