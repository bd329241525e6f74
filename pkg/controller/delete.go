package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// DeleteVolume makes a volume and its data be gone (CSI v1.13, DeleteVolume).
// An attached or published volume is refused with FAILED_PRECONDITION.
func (s *Service) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, rpc.Status(err)
	}

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.OnVolume(id, "", "DeleteVolume", request),
		func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
			if err := s.delete(ctx, id); err != nil {
				return nil, fmt.Errorf("delete volume %s: %w", id, err)
			}

			return &csi.DeleteVolumeResponse{}, nil
		})
}

func (s *Service) delete(ctx context.Context, id string) error {
	found, ok := s.volumes.Get(id)
	if !ok {
		return nil
	}

	if found.Phase == PhaseReady {
		if err := s.idle(found); err != nil {
			return err
		}

		// Once this is durable the volume is gone for every CO, whatever
		// happens to its bytes before the next start.
		doomed, err := s.change(ctx, id, func(v *Volume) error {
			v.Phase = PhaseDeleting

			return s.idle(v)
		})
		if err != nil {
			return err
		}

		found = doomed
	}

	return s.remove(found)
}

// idle returns FAILED_PRECONDITION while somebody uses the volume.
func (s *Service) idle(v *Volume) error {
	// Without the capability nobody could take an attachment of before away.
	if len(v.Attachments) > 0 && s.has(capability.PublishUnpublishVolume) {
		return rpc.Errorf(codes.FailedPrecondition, "volume %s is attached to %s; unpublish it there first",
			v.ID, strings.Join(v.nodeIDs(), ", "))
	}

	if s.config.InUse == nil {
		return nil
	}

	if user, used := s.config.InUse(v.ID); used {
		return rpc.Errorf(codes.FailedPrecondition, "volume %s is in use at %s; unpublish and unstage it first", v.ID, user)
	}

	return nil
}

// remove gives the bytes of a volume back that no CO sees any more, and forgets
// it.
func (s *Service) remove(v *Volume) error {
	place, err := s.poolOf(v)
	if err != nil {
		return err
	}

	if err := place.Remove(v.ID, v.Parameters.Backing); err != nil {
		return err
	}

	return s.forget(v.ID)
}

// forget does not wait for the disk: should the record come back after a
// crash, it only says once more that the bytes must go.
func (s *Service) forget(id string) error {
	err := s.store.UpdateLazily(func(tx *state.Tx) error { return s.volumes.In(tx).Delete(id) })
	if err != nil && !errors.Is(err, state.ErrReadOnly) {
		return fmt.Errorf("forget volume %s: %w", id, err)
	}

	s.monitor.Forget(id)

	return nil
}
