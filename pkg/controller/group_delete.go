package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// DeleteVolumeGroupSnapshot makes a group and its snapshots be gone (CSI v1.13,
// DeleteVolumeGroupSnapshot).
func (g *Groups) DeleteVolumeGroupSnapshot(
	ctx context.Context, request *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	s, id := g.service, request.GetGroupSnapshotId()
	if err := rpc.CheckID("group_snapshot_id", id); err != nil {
		return nil, err
	}

	call := operation.Call{Key: "group snapshot " + id, Method: "DeleteVolumeGroupSnapshot", Request: request}

	return operation.DoLogged(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, g.deleteGroup(ctx, id, request.GetSnapshotIds())
	})
}

func (g *Groups) deleteGroup(ctx context.Context, id string, memberIDs []string) (err error) {
	defer errdefs.Wrapf(&err, "delete group snapshot %s", id)

	found, ok := g.service.catalog.Groups.Get(id)
	if !ok || found.Phase == record.PhaseCreating {
		return nil
	}

	if err := found.CheckMembers(memberIDs); err != nil {
		return err
	}

	return g.service.copies.Remove(ctx, found, g.service.catalog.Members(found)...)
}
