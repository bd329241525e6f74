package ctl

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

func newSnapshotCommand(given *settings) *cobra.Command {
	return aliased(group("snapshot", "Take, list, restore and delete snapshots, and see what changed between them",
		newSnapshotCreateCommand(given),
		newSnapshotListCommand(given),
		newSnapshotGetCommand(given),
		newSnapshotDeleteCommand(given),
		newRestoreCommand(given),
		newBlocksCommand(given),
	), "snapshots", "snap")
}

func newSnapshotCreateCommand(given *settings) *cobra.Command {
	var (
		parameters keyValues
		wait       bool
		follow     followFlags
	)

	cmd := &cobra.Command{
		Use:   "create VOLUME NAME",
		Short: "CreateSnapshot",
		Long: `CreateSnapshot. The call is idempotent by name and source: the same command again
answers with the same snapshot. One that still has to be copied is taken but not
ready to use; --wait makes the call again until it is.`,
		Example: `  touchstone ctl snapshot create data before-upgrade
  touchstone ctl snapshot create data rough --param consistency=none --wait`,
		Args:              exactly(2),
		ValidArgsFunction: completeNames(given, names.Volume, 0, 0),
		RunE: given.inSession(naming(names.Volume, 0, 1, func(ctx context.Context, s *session) error {
			request := &csi.CreateSnapshotRequest{SourceVolumeId: s.args[0], Name: s.args[1], Parameters: parameters}
			stop := s.follow(ctx, follow, kindSnapshot)
			answer, err := s.createSnapshot(ctx, request, wait)

			stop()

			return s.showCreatedSnapshot(answer, snapshotSheet(answer.GetSnapshot()), answer.GetSnapshot().GetSnapshotId(), err)
		})),
	}
	cmd.Flags().Var(&parameters, "param", "a VolumeSnapshotClass parameter (repeatable)")
	cmd.Flags().BoolVar(&wait, "wait", false, "until it is ready to use")
	follow.register(cmd)

	return cmd
}

func (s *session) createSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest, wait bool) (*csi.CreateSnapshotResponse, error) {
	if wait {
		return s.CreateSnapshotAndWait(ctx, request)
	}

	return s.CreateSnapshot(ctx, request)
}

// showCreatedSnapshot shows the snapshot also if waiting for it to be ready failed: it
// exists, and the user needs its id.
func (s *session) showCreatedSnapshot(answer proto.Message, rows [][]string, id string, failure error) error {
	if !answer.ProtoReflect().IsValid() {
		return failure
	}

	return errors.Join(failure, s.show(answer, rows, id))
}

func newSnapshotListCommand(given *settings) *cobra.Command {
	var (
		pageSize int32
		source   identifier
	)

	cmd := given.verb("list", "ListSnapshots, all pages", exactly(0), func(ctx context.Context, s *session) error {
		// The source may be gone, and its snapshots there.
		if err := s.resolve(ctx, names.Volume, (*string)(&source)); err != nil && !errors.Is(err, errNoObject) {
			return err
		}

		return s.watching(ctx, func(ctx context.Context) error { return s.listSnapshots(ctx, string(source), pageSize) })
	})
	cmd.Flags().Var(&source, "volume", "only those of this volume")
	cmd.Flags().Int32Var(&pageSize, "max-entries", 0, "ask for this many at a time (default: the driver's choice)")
	given.defineWatch(cmd)

	return aliased(cmd, "ls")
}

// listSnapshots shows what ListSnapshots returns, and in tables the names, where the driver lists
// them.
func (s *session) listSnapshots(ctx context.Context, sourceID string, pageSize int32) error {
	snapshots, _, err := s.objects(ctx, names.Snapshot)
	if err != nil {
		return err
	}

	volumes, _, err := s.objects(ctx, names.Volume)
	if err != nil {
		return err
	}

	named := nameMap(snapshots, volumes)
	whole := &csi.ListSnapshotsResponse{}
	table := listing{header: append([]string{"NAME"}, snapshotHeading()...)}

	for entry, err := range s.Snapshots(ctx, sourceID, pageSize) {
		if err != nil {
			return err
		}

		whole.Entries = append(whole.Entries, entry)
		row := snapshotRow(entry.GetSnapshot())
		row[1] = cmp.Or(named[row[1]], row[1])
		table.add(cmp.Or(named[row[0]], row[0]), append([]string{orDash(named[row[0]])}, row...))
	}

	return s.list(whole, &table)
}

func nameMap(lists ...[]names.Object) map[string]string {
	named := map[string]string{}

	for _, list := range lists {
		for _, each := range list {
			named[each.ID] = each.Name
		}
	}

	return named
}

func newSnapshotGetCommand(given *settings) *cobra.Command {
	return given.verb("get SNAPSHOT", "GetSnapshot, or ListSnapshots by id of a driver that has only that", exactly(1),
		naming(names.Snapshot, 0, 1, func(ctx context.Context, s *session) error {
			snapshot, err := s.snapshot(ctx, s.args[0])
			if err != nil {
				return err
			}

			return s.show(&csi.GetSnapshotResponse{Snapshot: snapshot}, snapshotSheet(snapshot), snapshot.GetSnapshotId())
		}))
}

func (s *session) snapshot(ctx context.Context, id string) (*csi.Snapshot, error) {
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	return s.FindSnapshot(ctx, caps, id)
}

func newSnapshotDeleteCommand(given *settings) *cobra.Command {
	return deletion(given, "DeleteSnapshot", names.Snapshot, func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

		return err
	})
}

func newRestoreCommand(given *settings) *cobra.Command {
	var (
		what   createFlags
		follow followFlags
	)

	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT NAME",
		Short: "CreateVolume from a snapshot",
		Long: `CreateVolume from a snapshot: a new volume named NAME that begins with its data.
Without --size it is as large as the snapshot says that it is; it may be larger,
not smaller. Name the use that the source had: --block for a raw one.`,
		Example: `  touchstone ctl snapshot restore before data-restored --fs xfs
  touchstone ctl snapshot restore before data-larger --fs xfs --size 10Gi`,
		Args:              exactly(2),
		ValidArgsFunction: completeNames(given, names.Snapshot, 0, 0),
		RunE: given.inSession(naming(names.Snapshot, 0, 1, func(ctx context.Context, s *session) error {
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

			return s.create(ctx, request, follow)
		})),
	}
	what.register(cmd)
	follow.register(cmd)

	return cmd
}

func snapshotHeading() []string {
	return []string{"SNAPSHOT ID", "SOURCE VOLUME", "SIZE", "CREATED", "READY", "GROUP"}
}

func snapshotRow(s *csi.Snapshot) []string {
	return []string{
		s.GetSnapshotId(), s.GetSourceVolumeId(), humanOrUnknown(s.GetSizeBytes()), formatTime(s.GetCreationTime()),
		strconv.FormatBool(s.GetReadyToUse()), orDash(s.GetGroupSnapshotId()),
	}
}

// snapshotSheet describes one snapshot, a line for each property.
func snapshotSheet(s *csi.Snapshot) [][]string {
	return [][]string{
		{"Snapshot ID:", s.GetSnapshotId()},
		{"Source volume:", s.GetSourceVolumeId()},
		{"Size:", humanOrUnknown(s.GetSizeBytes())},
		{"Created:", formatTime(s.GetCreationTime())},
		{"Ready to use:", strconv.FormatBool(s.GetReadyToUse())},
		{"Group:", orDash(s.GetGroupSnapshotId())},
		{"Topology:", formatTopologies(s.GetAccessibleTopology())},
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
