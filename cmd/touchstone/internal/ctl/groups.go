package ctl

import (
	"context"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

func groupCreateVerb() verb {
	request, wait := &csi.CreateVolumeGroupSnapshotRequest{}, false

	return verb{
		name: "create", arguments: []argument{manyVolumes, newName}, short: "CreateVolumeGroupSnapshot", progress: true,
		long: `CreateVolumeGroupSnapshot: a point-in-time snapshot of all volumes, or none.
Each can be restored alone; they are deleted together.`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var((*keyValues)(&request.Parameters), "param", "a VolumeGroupSnapshotClass parameter (repeatable)")
			flags.BoolVar(&wait, "wait", false, "until all of it is ready to use")
		},
		run: func(ctx context.Context, s *session) error {
			last := len(s.args) - 1
			request.Name, request.SourceVolumeIds = s.args[last], s.args[:last]

			create := s.CreateGroupSnapshotAndWait
			if !wait {
				create = once(s.CreateVolumeGroupSnapshot)
			}

			answer, err := copying(ctx, s, kindGroup, request.GetName(),
				func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) { return create(ctx, request) })
			s.names.add(answer.GetGroupSnapshot().GetGroupSnapshotId(), request.GetName())

			rows := s.groupSheet(answer.GetGroupSnapshot())
			if answer.GetGroupSnapshot().GetReadyToUse() {
				rows = append([][]string{{"group " + request.GetName() + " is ready"}}, rows...)
			}

			return s.answer(answer, err, rows, answer.GetGroupSnapshot().GetGroupSnapshotId())
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

			answer, err := s.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
				GroupSnapshotId: s.args[0], SnapshotIds: ids,
			})

			return s.answer(answer, err, s.groupSheet(answer.GetGroupSnapshot()), answer.GetGroupSnapshot().GetGroupSnapshotId())
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
	}, members.register)
}

// groupSheet describes a group, and then its members, which have no names, in a table.
func (p *printer) groupSheet(g *csi.VolumeGroupSnapshot) [][]string {
	members := make([]snapshot, len(g.GetSnapshots()))
	for i, each := range g.GetSnapshots() {
		members[i] = snapshot{each, p.names}
	}

	return slices.Concat([][]string{
		{"Name:", orDash(p.names[g.GetGroupSnapshotId()])},
		{"Group ID:", g.GetGroupSnapshotId()},
		{"Created:", formatTime(g.GetCreationTime())},
		{"Ready to use:", strconv.FormatBool(g.GetReadyToUse())},
		{},
	}, snapshotColumns[1:].table(outputTable, members...))
}
