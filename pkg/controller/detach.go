package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ControllerUnpublishVolume detaches a volume from a node, or from all of them
// when none is named (CSI v1.13, ControllerUnpublishVolume).
func (s *Service) ControllerUnpublishVolume(
	ctx context.Context, request *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	id, nodeID := request.GetVolumeId(), request.GetNodeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	return operation.DoLogged(ctx, s.config.Log, s.ops, operation.VolumeCall(id, nodeID, "ControllerUnpublishVolume", request),
		func(ctx context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
			return &csi.ControllerUnpublishVolumeResponse{}, s.detach(ctx, id, nodeID)
		})
}

func (s *Service) detach(ctx context.Context, id, nodeID string) (err error) {
	defer errdefs.Wrapf(&err, "detach volume %s from node %q", id, nodeID)

	leaves := func(a record.Attachment) bool { return nodeID == "" || a.NodeID == nodeID }

	found, ok := s.catalog.Volumes.Get(id)
	if !ok || !slices.ContainsFunc(found.Attachments, leaves) {
		return nil
	}

	// Another node could attach a volume that is still written to here.
	if _, here := found.AttachmentTo(s.config.NodeID); here && !s.config.DetachInUse && leaves(record.Attachment{NodeID: s.config.NodeID}) {
		if err := s.use.CheckNoneHere(found); err != nil {
			return err
		}
	}

	pristine := isStillPristine(ctx, s.catalog, found)

	_, err = s.catalog.UpdateVolume(ctx, id, func(v *record.Volume) error {
		v.Attachments = slices.DeleteFunc(v.Attachments, leaves)
		v.Pristine = pristine

		return nil
	})

	return err
}
