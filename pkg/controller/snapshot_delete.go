package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// DeleteSnapshot makes a snapshot and its data be gone (CSI v1.13,
// DeleteSnapshot). One that is read by a restore is refused with ABORTED, a
// member of a group with INVALID_ARGUMENT.
func (s *Service) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := request.GetSnapshotId()
	if err := rpc.CheckID("snapshot_id", id); err != nil {
		return nil, err
	}

	call := operation.Call{Key: "snapshot " + id, Method: "DeleteSnapshot", Request: request}

	return operation.DoLogged(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (*csi.DeleteSnapshotResponse, error) {
		return &csi.DeleteSnapshotResponse{}, s.deleteSnapshot(ctx, id)
	})
}

func (s *Service) deleteSnapshot(ctx context.Context, id string) (err error) {
	defer errdefs.Wrapf(&err, "delete snapshot %s", id)

	found, ok := s.catalog.Snapshots.Get(id)

	switch {
	// One that is being created was not acknowledged.
	case !ok || found.Phase == record.PhaseCreating:
		return nil
	case found.GroupID != "" && found.Phase == record.PhaseDeleting:
		return nil
	case found.GroupID != "":
		return rpc.Invalid("it is a member of group snapshot %s and goes with it; call DeleteVolumeGroupSnapshot", found.GroupID)
	default:
		return s.copies.Remove(ctx, nil, found)
	}
}
