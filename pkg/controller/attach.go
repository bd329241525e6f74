package controller

import (
	"cmp"
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ControllerPublishVolume attaches a volume to a node (CSI v1.13,
// ControllerPublishVolume). record.CheckAttachable decides which node may.
func (s *Service) ControllerPublishVolume(
	ctx context.Context, request *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	id, wanted, err := s.parsePublish(request)
	if err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(id)
	if err != nil {
		return nil, err
	}

	if wanted.NodeID != s.config.NodeID && !slices.Contains(s.config.Nodes, wanted.NodeID) {
		return nil, rpc.Errorf(codes.NotFound, "node %q does not exist; name it with --nodes", wanted.NodeID)
	}

	if err := s.checkCapability(wanted.Capability, found); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	return operation.DoLogged(ctx, s.config.Log, s.ops, operation.VolumeCall(id, wanted.NodeID, "ControllerPublishVolume", request),
		func(ctx context.Context) (*csi.ControllerPublishVolumeResponse, error) {
			attached, err := s.attach(ctx, id, wanted)

			return &csi.ControllerPublishVolumeResponse{PublishContext: attached.PublishContext()}, err
		})
}

func (p *parser) parsePublish(request *csi.ControllerPublishVolumeRequest) (id string, wanted record.Attachment, err error) {
	id, wanted = request.GetVolumeId(), record.Attachment{NodeID: request.GetNodeId(), ReadOnly: request.GetReadonly()}

	if wanted.Capability, err = p.parseCapability(request.GetVolumeCapability()); err != nil {
		err = rpc.Invalid("volume_capability: %w", err)
	} else if wanted.ReadOnly && !p.has(capability.PublishReadonly) {
		err = rpc.Invalid("readonly must be false, as the capability %s is not advertised", capability.PublishReadonly)
	}

	return id, wanted, cmp.Or(rpc.CheckPresent("node_id", wanted.NodeID), rpc.CheckVolumeID(id), err)
}

func (s *Service) attach(ctx context.Context, id string, wanted record.Attachment) (_ record.Attachment, err error) {
	defer errdefs.Wrapf(&err, "attach volume %s to node %s", id, wanted.NodeID)

	found, err := s.catalog.FindVolume(id)
	if err != nil {
		return wanted, err
	}

	if existing, ok := found.AttachmentTo(wanted.NodeID); ok {
		return existing, found.CheckSame(existing, wanted)
	}

	p, err := s.catalog.PoolOf(found)
	if err != nil {
		return wanted, err
	}

	if found.Pristine {
		allocate := objects.AllocateDurably

		if s.config.BootID != "" && found.IsFilledAtStaging(wanted.Capability) {
			allocate, wanted.UnsyncedIn = objects.Allocate, s.config.BootID
		}

		if err := allocate(found, p); err != nil {
			return wanted, err
		}
	}

	if err := s.config.Point.At(ctx, operation.AttachmentAllowed, id, found.Name); err != nil {
		return wanted, err
	}

	_, err = s.catalog.UpdateVolume(ctx, id, func(v *record.Volume) error {
		if err := v.CheckAttachable(wanted); err != nil {
			return err
		}

		slot, taken := s.catalog.FreeSlot(wanted.NodeID)
		if s.config.MaxVolumesPerNode > 0 && taken >= s.config.MaxVolumesPerNode {
			return rpc.Errorf(codes.ResourceExhausted, "node %s has %d volumes attached, its limit (--max-volumes-per-node)",
				wanted.NodeID, taken)
		}

		wanted.Slot = slot
		v.Attachments = append(v.Attachments, wanted)
		v.Pristine = false

		return nil
	})
	if err != nil {
		return wanted, err
	}

	return wanted, s.config.Point.At(ctx, operation.AttachmentRecorded, id, found.Name)
}

// isStillPristine reports whether no NodeStageVolume has replaced the image of a volume that was pristine
// when it was attached.
func isStillPristine(ctx context.Context, records *catalog.Catalog, v *record.Volume) bool {
	if v.UnsyncedIn() == "" {
		return false
	}

	p, err := records.PoolOf(v)
	if err != nil {
		return false
	}

	allocated, err := p.Images.AllocatedBytes(ctx, v.ID)

	return err == nil && allocated == 0
}
