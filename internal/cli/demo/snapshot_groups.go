package demo

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *demo) takeGroup(g *groupSnapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: "name=" + g.name}
		for _, member := range g.members {
			done.with += " " + member.source.short()
		}

		answer, err := d.CreateGroupSnapshotAndWait(ctx, g.request())
		if id := answer.GetGroupSnapshot().GetGroupSnapshotId(); id != "" {
			g.id = id
			g.undo = append(g.undo, func(ctx context.Context) error { return d.callDeleteGroup(ctx, g) })
		}

		if err != nil {
			return done, err
		}

		skew, err := g.matchMembers(answer.GetGroupSnapshot().GetSnapshots())
		done.got = fmt.Sprintf("%d snapshots within %s", len(g.members), humanDuration(skew))

		return done, err
	}
}

func (d *demo) takeGroupAgain(g *groupSnapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateVolumeGroupSnapshot(ctx, g.request())
		if id := answer.GetGroupSnapshot().GetGroupSnapshotId(); err == nil && id != g.id {
			err = fmt.Errorf("%w: group %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same group"}, err
	}
}

func (d *demo) deleteMemberRefused(member *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: member.short(), got: "refused: it is a member of the group"}

		err := d.callDeleteSnapshot(ctx, member.id)

		switch status.Code(err) {
		case codes.InvalidArgument, codes.FailedPrecondition:
			return done, nil
		case codes.OK:
			return done, errMemberDeleted
		default:
			return done, err
		}
	}
}

func (d *demo) getGroup(g *groupSnapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
			GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
		})
		if found := len(answer.GetGroupSnapshot().GetSnapshots()); err == nil && found != len(g.members) {
			err = fmt.Errorf("%w: %d are left", errMemberMissing, found)
		}

		return outcome{with: "group=…" + endOfID(g.id), got: "both snapshots"}, err
	}
}

func (d *demo) deleteGroup(g *groupSnapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: "group=…" + endOfID(g.id), got: "gone, with its snapshots"}, g.undoLast(ctx)
	}
}

func (d *demo) callDeleteGroup(ctx context.Context, g *groupSnapshot) error {
	_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})

	return err
}
