package ctl

import (
	"context"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

func newGroupCommand(given *settings) *cobra.Command {
	return group("group", "Snapshots of several volumes at one moment",
		newGroupCreateCommand(given),
		newGroupGetCommand(given),
		newGroupDeleteCommand(given),
	)
}

func newGroupCreateCommand(given *settings) *cobra.Command {
	var (
		parameters keyValues
		wait       bool
		follow     followFlags
	)

	cmd := &cobra.Command{
		Use:   "create NAME VOLUME…",
		Short: "CreateVolumeGroupSnapshot",
		Long: `CreateVolumeGroupSnapshot: a point-in-time snapshot of all volumes, or none.
Each can be restored alone; they are deleted together.`,
		Args:              atLeast(2),
		ValidArgsFunction: completeNames(given, names.Volume, 1, -1),
		RunE: given.inSession(naming(names.Volume, 1, -1, func(ctx context.Context, s *session) error {
			request := &csi.CreateVolumeGroupSnapshotRequest{
				Name: s.args[0], SourceVolumeIds: s.args[1:], Parameters: parameters,
			}
			stop := s.follow(ctx, follow, kindGroup)
			answer, err := s.createGroupSnapshot(ctx, request, wait)

			stop()

			return s.showCreatedSnapshot(answer, groupSheet(answer.GetGroupSnapshot()), answer.GetGroupSnapshot().GetGroupSnapshotId(), err)
		})),
	}
	cmd.Flags().Var(&parameters, "param", "a VolumeGroupSnapshotClass parameter (repeatable)")
	cmd.Flags().BoolVar(&wait, "wait", false, "until all of it is ready to use")
	follow.register(cmd)

	return cmd
}

func (s *session) createGroupSnapshot(
	ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest, wait bool,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if wait {
		return s.CreateGroupSnapshotAndWait(ctx, request)
	}

	return s.CreateVolumeGroupSnapshot(ctx, request)
}

// memberFlags are the ids of a group's snapshots, which the spec requires in each call for it.
type memberFlags struct{ ids []string }

func (f *memberFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.ids, "snapshot", nil,
		"the id of a member (repeatable; default: those that ListSnapshots shows)")
}

func (f *memberFlags) of(ctx context.Context, s *session, groupID string) ([]string, error) {
	if len(f.ids) > 0 {
		return f.ids, nil
	}

	return s.GroupMembers(ctx, groupID)
}

func newGroupGetCommand(given *settings) *cobra.Command {
	var members memberFlags

	cmd := given.verb("get GROUP", "GetVolumeGroupSnapshot", exactly(1),
		naming(names.Group, 0, 1, func(ctx context.Context, s *session) error {
			ids, err := members.of(ctx, s, s.args[0])
			if err != nil {
				return err
			}

			answer, err := s.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
				GroupSnapshotId: s.args[0], SnapshotIds: ids,
			})
			if err != nil {
				return err
			}

			return s.show(answer, groupSheet(answer.GetGroupSnapshot()), answer.GetGroupSnapshot().GetGroupSnapshotId())
		}))
	members.register(cmd)

	return cmd
}

func newGroupDeleteCommand(given *settings) *cobra.Command {
	var members memberFlags

	cmd := deletion(given, "DeleteVolumeGroupSnapshot", names.Group, func(ctx context.Context, s *session, id string) error {
		ids, err := members.of(ctx, s, id)
		if err != nil {
			return err
		}

		_, err = s.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: ids})

		return err
	})
	members.register(cmd)

	return cmd
}

// groupSheet describes a group, and then its members in a table.
func groupSheet(g *csi.VolumeGroupSnapshot) [][]string {
	const heading = 5

	rows := make([][]string, 0, heading+len(g.GetSnapshots()))
	rows = append(rows,
		[]string{"Group ID:", g.GetGroupSnapshotId()},
		[]string{"Created:", formatTime(g.GetCreationTime())},
		[]string{"Ready to use:", strconv.FormatBool(g.GetReadyToUse())},
		[]string{},
		snapshotHeading(),
	)

	for _, member := range g.GetSnapshots() {
		rows = append(rows, snapshotRow(member))
	}

	return rows
}
